"""The agent's HTTP port: a small server, who may ask, and what is served: metrics, health, and the page."""
