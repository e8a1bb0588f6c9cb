"""The machine as a picture in SVG, drawn from the answer to ``nodes``. Pure; see `machine_map`."""
