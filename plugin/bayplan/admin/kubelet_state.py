"""The questions ``import-state`` and ``export-state``: kubelet's state files in, and out again; and
``import-claims``: what dra-driver-cpu has prepared.

The client reads and writes the files; here they are text. Of the managers either everything is taken over in
one transaction, or nothing, with all the reasons; of claims those that can be. Nothing about a container is
changed: docs/kubelet-state.md says why.
"""

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from bayplan.admin.questions import Question
from bayplan.admin_protocol import API_VERSION
from bayplan.control.controller import Controller
from bayplan.control.state import Current
from bayplan.engines.kubelet.cpu_checkpoint import format_checkpoint as format_cpus
from bayplan.engines.kubelet.memory_checkpoint import checkpoint_of
from bayplan.engines.kubelet.memory_checkpoint import format_checkpoint as format_memory
from bayplan.engines.kubelet.state_files import CPU_FILE, MEMORY_FILE, read_cpu_file, read_memory_file
from bayplan.errors import ConfigError, Problem
from bayplan.host import shadow_mode
from bayplan.kubelet.manager_options import STATIC, ManagerOptions, MemoryManagerPolicy
from bayplan.model.basis import Basis
from bayplan.model.ledger import Ledger
from bayplan.model.policy import PlacementPolicy
from bayplan.placement.claim_adoption import CHECKPOINT, Adoption, adopt_claims, read_checkpoint
from bayplan.placement.kubelet_handover import KubeletState, Names, TakeOver, hand_back, take_over
from bayplan.placement.resource_claims import users_of
from bayplan.sets import NodeSet
from bayplan.views.snapshot import Snapshot

logger = logging.getLogger(__name__)

_MEMORY_VERSION: Final = 1
"""Of memory_manager_state, without pods as a whole. kubelet reads it with and without its feature gate
PodLevelResourceManagers."""


def importing(controller: Controller, verify_soon: Callable[[], None]) -> Question:
    """The question ``import-state``; a ``dryRun`` changes nothing. ``files`` are the texts, by name."""

    async def import_state(_: Snapshot, request: Mapping[str, object]) -> dict[str, Any]:
        dry_run, files = request.get("dryRun") is not False, _files(request.get("files"))
        shadow_mode.check_off("what kubelet's managers have placed")
        async with controller.state.transaction() as transaction:
            basis = transaction.basis
            result = _planned(basis, files, _names(controller, basis.ledger))
            if not dry_run:
                controller.placements.take_over(transaction, result.ledger)
        if not dry_run:
            await controller.state.wait_written()
            verify_soon()
            count = {"containers": len(result.taken), "sharing": len(result.sharing)}
            logger.warning("taken over from kubelet's state files", extra=count)
        return _view(result, dry_run=dry_run)

    return import_state


def importing_claims(controller: Controller, verify_soon: Callable[[], None]) -> Question:
    """The question ``import-claims``; a ``dryRun`` changes nothing. ``checkpoint`` is the text of kubelet's
    record of claims, ``specs`` are those of the driver's CDI specs, by the names of their files."""

    async def import_claims(_: Snapshot, request: Mapping[str, object]) -> dict[str, Any]:
        dry_run, state = request.get("dryRun") is not False, controller.state
        checkpoint, specs = request.get("checkpoint"), _texts(request.get("specs"))
        if not isinstance(checkpoint, str):
            found = Problem("checkpoint", type(checkpoint).__name__, f"the text of {CHECKPOINT}")
            raise ConfigError("request", (found,))
        shadow_mode.check_off("resource claims")
        prepared = read_checkpoint(checkpoint)
        async with state.transaction() as transaction:
            basis, known = transaction.basis, state.known
            pods = {key: known.pods.get(one.pod_id) for key, one in known.containers.items()}
            running = {key: (pod, known.containers[key]) for key, pod in pods.items() if pod is not None}
            result = adopt_claims(basis, basis.engine, prepared, specs, running)
            if not dry_run and result.adopted:
                controller.placements.take_over(transaction, result.ledger)
        if not dry_run:
            await state.wait_written()
            verify_soon()
            count = {"claims": len(result.adopted), "leftOut": len(result.left_out)}
            logger.warning("claims that dra-driver-cpu has prepared are taken over", extra=count)
            for one in result.left_out:
                fields = {"claim": one.name, "uid": one.uid, "problem": one.problem}
                logger.warning("a resource claim is not taken over", extra=fields)
        return _claims_view(result, dry_run=dry_run)

    return import_claims


def exporting(
    controller: Controller, static_managers: Callable[[], tuple[PlacementPolicy, ManagerOptions]]
) -> Question:
    """The question ``export-state``; *static_managers* are those that kubelet is to start with."""

    async def export_state(_: Snapshot, __: Mapping[str, object]) -> dict[str, Any]:
        shadow_mode.check_off("kubelet's state")
        policy, options = static_managers()
        basis = Basis(controller.state.machine, policy, controller.state.ledger)
        state = hand_back(basis, options, _names(controller, basis.ledger))
        if state.problems:
            raise ConfigError("what bayplan has placed, in kubelet's files", state.problems)
        checkpoint = checkpoint_of(MemoryManagerPolicy.STATIC.value, state.memory)
        return {
            "apiVersion": API_VERSION,
            "kind": "ExportState",
            "containers": list(state.containers),
            "files": {
                CPU_FILE: json.loads(format_cpus(state.cpus, STATIC)),
                MEMORY_FILE: json.loads(format_memory(checkpoint, _MEMORY_VERSION)),
            },
        }

    return export_state


def _files(given: object) -> Mapping[str, str]:
    names = (CPU_FILE, MEMORY_FILE)
    if isinstance(given, dict) and given and given.keys() <= set(names):
        texts = {str(name): text for name, text in given.items() if isinstance(text, str)}
        if len(texts) == len(given):
            return texts
    expected = f"the texts of {' and '.join(names)}, or of one of them"
    raise ConfigError("request", (Problem("files", type(given).__name__, expected),))


def _texts(given: object) -> Mapping[str, str]:
    if isinstance(given, dict) and all(isinstance(text, str) for text in given.values()):
        return given
    raise ConfigError("request", (Problem("specs", type(given).__name__, "texts of CDI specs by file"),))


def _planned(basis: Current, files: Mapping[str, str], names: Names) -> TakeOver:
    """What would become of the ledger of *basis* with the *files*.

    Raises:
        ConfigError: everything that is wrong with them, or with taking them over.
    """
    cpus, memory, problems = None, None, list[Problem]()
    if CPU_FILE in files:
        cpus, wrong = read_cpu_file(files[CPU_FILE], basis.machine, basis.policy.reserved_cpus, names)
        problems += wrong
    if MEMORY_FILE in files:
        memory, wrong = read_memory_file(files[MEMORY_FILE], basis.machine)
        problems += wrong
    if not problems:
        state = KubeletState(cpus, memory)
        result = take_over(basis, basis.engine, names, state)
        if not result.problems:
            return result
        problems += result.problems
    raise ConfigError("kubelet's state", tuple(problems))


def _names(controller: Controller, ledger: Ledger) -> Names:
    """Pod uid and name of the containers that hold something, by id."""
    known = controller.state.known
    return {
        key: (known.pods[one.pod_id].uid, one.name)
        for key, one in known.containers.items()
        if key in ledger.entries and one.pod_id in known.pods
    }


def _view(result: TakeOver, *, dry_run: bool) -> dict[str, Any]:
    entries = result.ledger.entries
    return {
        "apiVersion": API_VERSION,
        "kind": "ImportState",
        "dryRun": dry_run,
        "containers": [
            {
                "id": key,
                "name": entries[key].decision.request.name,
                "cpus": str(entries[key].decision.placement.exclusive_cpus),
                "mems": None if (mems := entries[key].decision.placement.mems) is None else str(mems),
            }
            for key in result.taken
        ],
        "sharing": [entries[key].decision.request.name for key in result.sharing],
        "notRunning": [f"{uid}/{name}" for uid, name in result.absent],
    }


def _claims_view(result: Adoption, *, dry_run: bool) -> dict[str, Any]:
    ledger = result.ledger
    return {
        "apiVersion": API_VERSION,
        "kind": "ImportClaims",
        "dryRun": dry_run,
        "claims": [
            {
                "name": f"{held.claim.namespace}/{held.claim.name}",
                "uid": held.claim.uid,
                "cpus": str(held.cpus_of()),
                "nodes": str(NodeSet(device.node for device in held.claim.devices)),
                "containers": sorted(one.decision.request.name for one in users_of(ledger, held.claim.uid)),
            }
            for held in result.adopted
        ],
        "leftOut": [{"name": one.name, "uid": one.uid, "problem": one.problem} for one in result.left_out],
        "sharing": [ledger.entries[key].decision.request.name for key in result.sharing],
    }
