"""The `exact` engine: memory is promised on sets of nodes, and a maximum flow says whether all can be kept.

Theory of operation
===================

**Claims.** A container claims so many bytes of a resource (memory, each size of huge pages) on a *set* of
nodes as a whole: 6 GiB on nodes {0, 1} may end up as 6 + 0, as 2 + 4, or any other way.

**Hall's condition.** All claims can be kept exactly if for every set S of nodes the claims that lie within S
sum to no more than S holds. Example: nodes 0 and 1 hold 8 GiB each, and 6 GiB are claimed on {0}, 6 on {0,
1}. A claim of 4 on {1} passes for {1} (4 of 8) and for {0, 1} (16 of 16); 5 would not (17 of 16), although
node 1 looks empty.

**Flow and cut.** A machine has 2^n such sets, so that they are not looked at one by one. Claims send bytes to
the nodes of their sets, and nodes pass on what they hold: the condition holds exactly if a maximum flow
carries every claim. Where it does not, the minimum cut is the smallest set that is asked for too much; that
set, its capacity and who claims within it are the refusal. The flow is not an allocation: a later claim may
route it otherwise. How it is spread over the nodes at the moment is the *witness*, for those who look.

**Which set.** What a container is confined to is the best set that fits, by the order of `question`: first
the fewest claimed sets that it crosses, since the kernel fills nodes by first touch and knows no limit per
node, so that nothing makes it keep the parts of sets that cross each other apart; then the fewest nodes, the
least distance, and so on. The `search` goes from narrow to wide. Up to 1000 sets of a width are looked at one
by one, which is all of them on machines of up to 12 nodes. Of more, good ones are looked at, and branch and
bound finds what these miss, or proves that there is nothing: what fits, what crosses fewer, what is nearer.

**When nothing fits.** Where the policy is strict or a wish required, other containers become wider for the
request (`moves`), and only if that does not help it is refused. Otherwise it is promised as much as there is.

**What is bounded.** Both searches are NP-hard, so that a decision has 40000 steps of about a microsecond, and
no decision takes more than 100 ms of CPU. What it costs: a search that is given up says so (`SEARCH_ENDED`);
then a set with room, or a better one, may exist. Promises never depend on it: only what fits is claimed.

Glossary
========

claim        bytes of each resource on a set of nodes, for one container
nodes        a set of nodes, mostly as a bitmask (`mask`); a node is a mask with one bit
fit, room    whether, and how much of, an amount can be claimed on a set beside all claims
slack        what a set holds, less all claims within it
carried      where a flow has put the bytes of a claim; `free` is what a node carries nothing of
unmet        what a flow cannot carry, of claims that were found or whose capacity went away
even         of huge pages: each node of the set keeps the same; they are claimed on each node by itself
cross        two sets share nodes, and neither lies within the other
wide         of several nodes; a container that gets more nodes becomes *wider*
candidates   the nodes a request may choose from; *allowed* is their mask; a *width* is a number of nodes
core         nodes that a set must contain: those that a running container has
plausible    has the CPUs, the devices, and the room that its nodes have one by one
relaxed      as if all containers that may become wider were so
short        a claim that could only be promised in part
confined     bound to a set of its own by cpuset.mems
flexible     may become wider for the sake of others
witness      so many bytes of this container on that node

In the order of reading
=======================

flow            claims of one resource on sets, carried by nodes: the maximum flow and the minimum cut
resources       one flow for each resource, in step with the ledger; who holds what in a cut
witness         bytes by container and node, and the sets that lack memory
cpu_choice      which CPUs of a number are the best: cores, caches, distance, what stays
topology        what depends on the machine only: distances, initiators, sets in the order of both
claiming        what a request claims, on which nodes, on how many, and how firmly
question        what a set is wanted for, by what sets are compared, and what it takes to find out
search          the best set that fits, from narrow to wide; branch and bound, and when a branch ends
attempts        one attempt to place a container, and the sentences of its outcome
moves           who becomes wider for others, and who goes back
exclusive_cpus  which CPUs a container may have, and which of them it gets
relocations     who would have to go elsewhere so that a request fits
cpu_pools       decisions about containers in named pools, and how many CPUs these have
unconfined      decisions about containers without a set of their own, and where others chose CPUs or nodes
whole_pods      decisions about containers of pods with resources as a whole
confined        decisions about containers with one
engine          what is tried in which order; the engine's interface
"""
