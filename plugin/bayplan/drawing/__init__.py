"""Machines and clusters as pictures in SVG, drawn from the answers to ``nodes``. Pure."""
