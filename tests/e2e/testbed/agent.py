"""bayplan-agent in the guest, as a user without any privileges who may speak to the daemon."""

from testbed.guest import Guest

SERVICE = "bayplan-agent"
LOG = "/var/log/bayplan-agent.log"
GROUP = "adm"
PROGRAM = "/opt/bayplan/bin/bayplan-agent"


def start_agent(guest: Guest, *flags: str) -> None:
    """Start it with these flags, and without what it serves by itself; baypland has `--agent-group` GROUP."""
    user = ("setpriv", "--reuid=nobody", "--regid=nogroup", f"--groups={GROUP}", "--bounding-set=-all")
    serves = ("--pod-resources-socket=none", "--listen=none")
    guest.start(SERVICE, *user, PROGRAM, *serves, "--log-format=json", *flags, log=LOG)
