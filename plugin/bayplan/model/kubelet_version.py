"""What kubelet does differently from one minor version of Kubernetes to the next: one row for each version,
and the feature gates that it knows.

A kubelet configuration file does not say which kubelet reads it, and the same file means something else to
another one. So whatever depends on the version is a field of `KubeletRules`, is chosen once, by
`rules_of`, and nobody else compares versions. A version older than the table gets its first row, a newer one
its last.

kubelet does not start with a gate that it does not know, a locked gate at another value than its default, or
one that is on while one that it depends on is off. A gate that is unknown to a version was removed before it,
or came later. OpenShift's kubelet only warns of what it does not know.

Invariant: a row, and the table of gates, have what an unmodified kubelet of that version has with its default
emulation version and the defaults of its gates. Sources: ``pkg/features/kube_features.go``,
``pkg/kubelet/apis/config/v1beta1/defaults.go`` and the places that a field names, of v1.34.2, v1.35.1,
v1.36.3 and v1.37.2; the gates of the modules apiserver, client-go and component-base beside them, and
``featuregate/feature_gate.go`` for what follows from them.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

_FIRST_MINOR: Final = 34
_FIRST_WITH_DEPENDENCIES: Final = 35


class Stage(Enum):
    """How mature a gate is; the value is its letter in the table."""

    ALPHA = "a"
    BETA = "b"
    STABLE = "g"
    DEPRECATED = "d"


class Gate(Struct, frozen=True):
    """A feature gate of one version. ``locked``: it cannot be set to anything but its default."""

    stage: Stage
    default: bool
    locked: bool


class GateFault(Struct, frozen=True):
    """Why kubelet would not start, in its own ``sentence``. ``gate`` is at fault, ``on`` its value. It takes
    the gates ``missing``, which are off; or it is ``locked``; or it is unknown to this version, but known to
    the minor versions ``known_to``."""

    gate: str
    on: bool
    sentence: str
    missing: tuple[str, ...] = ()
    locked: bool = False
    known_to: tuple[int, ...] = ()


@cache
def gates_of(minor: int) -> Mapping[str, Gate]:
    """The gates of Kubernetes 1.*minor*, which is in the table, by name."""
    column = minor - _FIRST_MINOR + 1
    gates = {}
    for line in _GATES.split("\n"):
        words = line.split()
        letter = words[column][0]
        if letter != _ABSENT:
            gates[words[0]] = Gate(Stage(letter.lower()), letter.isupper(), words[column].endswith(_LOCKED))
    return gates


def resolved(minor: int, said: Mapping[str, object]) -> dict[str, object]:
    """What *said* sets, with the gates that AllAlpha and AllBeta stand for, as far as they are not set."""
    gates = dict(said)
    for name, stage in _SPECIAL.items():
        if isinstance(gates.get(name), bool):
            meant = (gate for gate, known in gates_of(minor).items() if known.stage is stage)
            gates = dict.fromkeys((gate for gate in meant if gate not in _SPECIAL), gates[name]) | gates
    return gates


def faults(minor: int, said: Mapping[str, bool]) -> Iterator[GateFault]:
    """Everything for which kubelet 1.*minor* would not start with what *said* sets; kubelet itself names the
    first unknown gate, and then nothing else."""
    known = gates_of(minor)
    taken = {}
    for name, on in said.items():
        gate = known.get(name)
        if gate is None:
            sentence = f"unrecognized feature gate: {name}"
            yield GateFault(name, on, sentence, known_to=_known_to(name))
        elif gate.locked and on is not gate.default:
            words = (_word(on), _word(gate.default))
            sentence = f"cannot set feature gate {name} to {words[0]}, feature is locked to {words[1]}"
            yield GateFault(name, on, sentence, locked=True)
        else:
            taken[name] = on
    if minor < _FIRST_WITH_DEPENDENCIES:
        return
    values = {name: gate.default for name, gate in known.items()} | resolved(minor, taken)
    for name, needed in _dependencies(minor).items():
        missing = tuple(one for one in needed if not values.get(one, True))
        if values.get(name) and missing:
            sentence = f"{name} is enabled, but depends on features that are disabled: [{' '.join(missing)}]"
            yield GateFault(name, on=True, sentence=sentence, missing=missing)


def _known_to(name: str) -> tuple[int, ...]:
    return tuple(minor for minor in range(_FIRST_MINOR, _FIRST_MINOR + _VERSIONS) if name in gates_of(minor))


@cache
def _dependencies(minor: int) -> Mapping[str, tuple[str, ...]]:
    """The gates that each gate of that version depends on, also those of another stage."""
    found = {}
    for line in _DEPENDENCIES.split("\n"):
        name, *needed = line.split()
        pairs = (one.partition("@") for one in needed)
        found[name] = tuple(gate for gate, _, since in pairs if minor >= int(since or 0))
    return found


def _word(value: bool) -> str:
    return "true" if value else "false"


_ABSENT: Final = "-"
_LOCKED: Final = "!"
_SPECIAL: Final[Mapping[str, Stage]] = {"AllAlpha": Stage.ALPHA, "AllBeta": Stage.BETA}
_VERSIONS: Final = 4

# A letter for each of 1.34, 1.35, 1.36 and 1.37: alpha, beta, g for stable, deprecated; a capital one is on
# by default, `!` is locked, `-` unknown.
_GATES: Final = """\
APIResponseCompression                               B  B  B  B
APIServerIdentity                                    B  B  B  B
APIServerTracing                                     G! G! G! -
APIServerWebhookAuthenticationToken                  -  -  -  a
APIServingWithRoutine                                a  a  a  a
AggregatedDiscoveryRemoveBetaType                    D  D! D! D!
AllAlpha                                             a  a  a  a
AllBeta                                              b  b  b  b
AllowDNSOnlyNodeCSR                                  d  d  d  d
AllowInsecureKubeletCertificateSigningRequests       d  d  d  d
AllowOverwriteTerminationGracePeriodSeconds          d  d! d! d!
AllowParsingUserUIDFromCertAuth                      B  B  B  B
AllowServiceExternalIPs                              -  -  G  G
AllowServiceLBStatusOnNonLB                          d! -  -  -
AllowUnsafeMalformedObjectDeletion                   a  a  a  B
AnonymousAuthConfigurableEndpoints                   G! G! G! -
AnyVolumeDataSource                                  G! G! G! -
AtomicFIFO                                           -  -  B  B
AtomicWriteVolumeUserFields                          -  -  -  a
AuthorizeNodeWithSelectors                           G! G! G! -
AuthorizePodWebsocketUpgradeCreatePermission         -  B  B  B
AuthorizeWithSelectors                               G! G! G! -
BtreeWatchCache                                      G! G! G! -
CBORServingAndStorage                                a  a  a  a
CPUManagerPolicyAlphaOptions                         a  a  a  a
CPUManagerPolicyBetaOptions                          B  B  B  B
CPUManagerPolicyOptions                              G! G! G! G!
CRDObservedGenerationTracking                        -  b  B  B
CRDValidationRatcheting                              G! G! G! G!
CRIListStreaming                                     -  -  a  a
CSIMigrationPortworx                                 G! G! -  -
CSIServiceAccountTokenSecrets                        -  B  G! G!
CSIVolumeHealth                                      a  a  a  a
ChangeContainerStatusOnKubeletRestart                -  d  d  d
ClearingNominatedNodeNameAfterBinding                a  B  B  B
ClientsAllowCARotation                               -  -  B  B
ClientsAllowCBOR                                     a  a  a  a
ClientsAllowTLSCacheGC                               -  -  B  B
ClientsPreferCBOR                                    a  a  a  a
CloudControllerManagerWatchBasedRoutesReconciliation -  a  a  a
CloudControllerManagerWebhook                        a  a  a  a
ClusterTrustBundle                                   b  b  b  G
ClusterTrustBundleProjection                         b  b  b  G
ComponentFlagz                                       a  a  B  B
ComponentSLIs                                        G! -  -  -
ComponentStatusz                                     a  a  B  B
CompositePodGroup                                    -  -  -  a
ConcurrentWatchObjectDecode                          b  b  b  B
ConsistentListFromCache                              G! G! G! -
ConsistentListFromCacheSkipTimeoutFallback           -  -  -  a
ConstrainedImpersonation                             -  a  B  B
ContainerCheckpoint                                  B  B  B  B
ContainerRestartRules                                a  B  B  B
ContainerStopSignals                                 a  a  a  a
ContextualLogging                                    B  B  B  B
CoordinatedLeaderElection                            b  b  b  b
CronJobsScheduledAnnotation                          G! -  -  -
CrossNamespaceVolumeDataSource                       a  a  a  a
CustomCPUCFSQuotaPeriod                              a  a  G  G
CustomResourceFieldSelectors                         G! G! G! G!
DRAAdminAccess                                       B  B  G! G!
DRAConsumableCapacity                                a  a  B  B
DRADerivedAttributes                                 -  -  -  a
DRADeviceBindingConditions                           a  a  B  B
DRADeviceCompatibilityGroups                         -  -  -  a
DRADeviceTaintRules                                  -  a  b  G
DRADeviceTaints                                      a  a  B  G
DRAExtendedResource                                  a  a  B  G!
DRAFractionalCapacityRange                           -  -  -  b
DRAListTypeAttributes                                -  -  a  a
DRANodeAllocatableResources                          -  -  a  a
DRAOptionalNodeOperations                            -  -  -  a
DRAPartitionableDevices                              a  a  B  B
DRAPartitionableDevicesType                          -  -  -  a
DRAPrioritizedList                                   B  B  G  G!
DRAResourceClaimDeviceStatus                         B  B  B  G!
DRAResourceClaimGranularStatusAuthorization          -  -  B  B
DRAResourcePoolStatus                                -  -  a  a
DRASchedulerFilterTimeout                            B  B  B  B
DRAWorkloadResourceClaims                            -  -  a  b
DeclarativeValidation                                B  B  G! G!
DeclarativeValidationBeta                            -  -  B  B
DeclarativeValidationTakeover                        b  b  d  d!
DefaultPodSysctls                                    -  -  -  a
DeploymentReplicaSetTerminatingReplicas              a  B  B  B
DetectCacheInconsistency                             B  B  B  B
DisableAllocatorDualWrite                            G  G! G! G!
DisableCPUQuotaWithExclusiveCPUs                     B  B  D  D!
DisableNodeKubeProxyVersion                          D  D  D! D!
DynamicResourceAllocation                            G  G! G! G!
EmptyDirVolumeMode                                   -  -  -  a
EnvFiles                                             a  B  B  B
EtcdRangeStream                                      -  -  -  B
EventedPLEG                                          a  a  a  a
EvictionRequestAPI                                   -  -  -  a
ExcludeAdmissionWebhookVirtualResources              -  -  -  B
ExecProbeTimeout                                     G  G! G! G!
ExtendWebSocketsToKubelet                            -  -  B  B
ExternalServiceAccountTokenSigner                    B  B  G! G!
GRPCContainerProbeTLS                                -  -  -  a
GangScheduling                                       -  a  a  -
GenericWorkload                                      -  a  a  b
GitRepoVolumeDriver                                  d  d  d! d!
GracefulNodeShutdown                                 B  B  B  B
GracefulNodeShutdownBasedOnPodPriority               B  B  B  B
H2CContainerProbe                                    -  -  -  a
HPAConfigurableTolerance                             a  B  B  G!
HPAGeneration                                        -  -  -  B
HPAOptimizedSelectorStore                            -  -  -  B
HPAScaleToZero                                       a  a  a  B
HonorPVReclaimPolicy                                 G! G! -  -
HostnameOverride                                     a  B  B  G!
HugepageAwareEviction                                -  -  -  B
ImageMaximumGCAge                                    B  G! G! G!
ImageVolume                                          b  B  G! G!
ImageVolumeWithDigest                                -  -  a  a
InOrderInformers                                     B  B  G! G!
InOrderInformersBatchProcess                         -  B  B  B
InPlacePodLevelResourcesVerticalScaling              -  a  B  B
InPlacePodVerticalScaling                            B  G! G! G!
InPlacePodVerticalScalingAllocatedStatus             d  d  -  -
InPlacePodVerticalScalingExclusiveCPUs               a  a  a  a
InPlacePodVerticalScalingExclusiveMemory             a  a  a  a
InPlacePodVerticalScalingInitContainers              -  -  B  G!
InPlacePodVerticalScalingMemoryBackedVolumes         -  -  -  a
InPlacePodVerticalScalingSchedulerPreemption         -  -  -  a
InTreePluginPortworxUnregister                       a  a  -  -
InformerResourceVersion                              a  G  G  G
InterPodAffinityHostnameFastPath                     -  -  -  a
JobBackoffLimitPerIndex                              G! G! G! -
JobManagedBy                                         B  G! G! G!
JobPodReplacementPolicy                              G! G! G! -
JobSuccessPolicy                                     G! G! G! -
KMSv1                                                d  d  d  d
KubeProxyIPVS                                        -  -  -  D
KubeProxyNFTablesLocalhostNodePorts                  -  -  -  a
KubeletAllocatedPodsEndpoint                         -  -  -  a
KubeletCgroupDriverFromCRI                           G! G! G! G!
KubeletCrashLoopBackOffMax                           a  B  B  B
KubeletEnsureSecretPulledImages                      a  B  B  B
KubeletFineGrainedAuthz                              B  B  G! G!
KubeletInUserNamespace                               a  a  a  B
KubeletPSI                                           B  B  G! G!
KubeletPodResourcesDynamicResources                  B  B  G! G!
KubeletPodResourcesGet                               B  B  G! G!
KubeletPodResourcesListUseActivePods                 D  D  D  D
KubeletRegistrationGetOnExistsOnly                   d  d  d  d
KubeletSeparateDiskGC                                B  B  B  B
KubeletServiceAccountTokenForCredentialProviders     B  B  B  B
KubeletTracing                                       G! G! G! G!
ListFromCacheSnapshot                                B  B  B  B
LoadBalancerIPMode                                   G! -  -  -
LocalStorageCapacityIsolationFSQuotaMonitoring       b  b  b  b
LogarithmicScaleDown                                 G! G! G! -
LoggingAlphaOptions                                  a  a  a  a
LoggingBetaOptions                                   B  B  B  B
ManifestBasedAdmissionControlConfig                  -  -  a  B
MatchLabelKeysInPodAffinity                          G! G! G! G!
MatchLabelKeysInPodTopologySpread                    B  B  B  B
MatchLabelKeysInPodTopologySpreadSelectorMerge       B  B  B  B
MaxUnavailableStatefulSet                            a  B  b  B
MemoryManager                                        G! G! -  -
MemoryQoS                                            a  a  a  B
MultiCIDRServiceAllocator                            G! G! G! G!
MutableCSINodeAllocatableCount                       b  B  G! G!
MutablePVNodeAffinity                                -  a  a  a
MutablePodResourcesForSuspendedJobs                  -  a  B  B
MutableSchedulingDirectivesForSuspendedJobs          -  a  B  B
MutatingAdmissionPolicy                              b  b  G  G
NFTablesNetlink                                      -  -  -  B
NFTablesProxyMode                                    G! G! G! G!
NativeHistograms                                     -  -  a  B
NodeControllerLeaseCircuitBreaker                    -  -  -  B
NodeDeclaredFeatures                                 -  a  B  G!
NodeInclusionPolicyInPodTopologySpread               G! G! G! G!
NodeLifecycleConditions                              -  -  -  a
NodeLogQuery                                         b  b  G! G!
NodeSwap                                             G! G! G! G!
NominatedNodeNameForExpectation                      a  B  B  B
OpenAPIEnums                                         B  B  B  B
OpportunisticBatching                                -  B  B  B
OrderedNamespaceDeletion                             G! G! G! -
PLEGOnDemandRelist                                   -  -  B  G!
PersistentVolumeClaimUnusedSinceTime                 -  -  a  B
PodAndContainerStatsFromCRI                          a  a  a  b
PodCertificateRequest                                a  b  b  G
PodDeletionCost                                      B  B  B  B
PodGroupPreemptionPolicy                             -  -  -  a
PodIndexLabel                                        G! -  -  -
PodLevelResourceManagers                             -  -  a  b
PodLevelResources                                    B  B  B  B
PodLevelResourcesFixDefaulting                       -  -  -  B
PodLevelResourcesFixKubeletQOSClass                  -  -  -  B
PodLifecycleSleepAction                              G! G! G! -
PodLifecycleSleepActionAllowZero                     G! G! G! -
PodLogsQuerySplitStreams                             a  a  a  a
PodObservedGenerationTracking                        B  G! G! G!
PodReadyToStartContainersCondition                   B  B  B  G!
PodSchedulingReadiness                               G! G! G! G!
PodTopologyLabelsAdmission                           a  B  B  B
PodsAPI                                              -  -  a  B
PortForwardWebsockets                                B  B  B  B
PreferSameTrafficDistribution                        B  G! G! G!
PreventStaticPodAPIReferences                        B  B  B  -
ProbeHostPodSecurityStandards                        G! -  -  -
ProcMountType                                        B  B  G! G!
QOSReserved                                          a  a  a  a
RecoverVolumeExpansionFailure                        G! G! G! G!
RecursiveReadOnlyMounts                              G! G! G! G!
ReduceDefaultCrashLoopBackOffDecay                   a  a  a  a
RelaxedDNSSearchValidation                           G! G! G! -
RelaxedEnvironmentVariableValidation                 G! G! G! G!
RelaxedServiceNameValidation                         a  a  B  G!
ReloadKubeletClientCAFile                            -  -  B  B
ReloadKubeletServerCertificateFile                   B  B  B  B
RemoteRequestHeaderUID                               B  B  B  B
ResilientWatchCacheInitialization                    G! G! G! -
ResourceHealthStatus                                 a  a  B  B
ResourceHealthStatusMessage                          -  -  B  B
RestartAllContainersOnContainerExits                 -  a  B  B
RetryGenerateName                                    G! G! G! -
RotateKubeletServerCertificate                       B  B  B  B
RuntimeClassInImageCriApi                            a  a  a  a
SELinuxChangePolicy                                  B  B  G! G!
SELinuxMount                                         b  b  b  G
SELinuxMountReadWriteOncePod                         B  B  G! G!
SchedulerAsyncAPICalls                               b  b  b  b
SchedulerAsyncPreemption                             B  B  B  B
SchedulerPopFromBackoffQ                             B  B  B  B
SchedulerPreQueueingHints                            -  -  -  a
SchedulerQueueingHints                               G! G! G! -
SeparateCacheWatchRPC                                d  d  d! d!
SeparateTaintEvictionController                      G! G! G! G!
ServiceAccountNodeAudienceRestriction                B  B  B  B
ServiceAccountTokenJTI                               G! G! G! G!
ServiceAccountTokenNodeBinding                       G! G! G! G!
ServiceAccountTokenNodeBindingValidation             G! G! G! G!
ServiceAccountTokenPodNodeInfo                       G! G! G! G!
ServiceCIDRStatusFieldWiping                         -  -  D  D
ServiceTrafficDistribution                           G! G! -  -
ShardedListAndWatch                                  -  -  a  a
SidecarContainers                                    G! G! G! -
SizeBasedListCostEstimate                            B  B  B  B
SizeMemoryBackedVolumes                              G! -  -  -
StaleControllerConsistencyDaemonSet                  -  -  B  B
StaleControllerConsistencyHPA                        -  -  -  B
StaleControllerConsistencyJob                        -  -  B  B
StaleControllerConsistencyReplicaSet                 -  -  B  B
StaleControllerConsistencyStatefulSet                -  -  B  B
StatefulSetAutoDeletePVC                             G! -  -  -
StatefulSetRecreateStrategy                          -  -  -  a
StatefulSetSemanticRevisionComparison                B  B  B  B
StorageCapacityScoring                               a  a  a  B
StorageNamespaceIndex                                D  D  D  D
StorageVersionAPI                                    a  a  a  a
StorageVersionHash                                   B  B  B  B
StorageVersionMigrator                               a  b  b  G
StreamingCollectionEncodingToJSON                    G! G! G! -
StreamingCollectionEncodingToProtobuf                G! G! G! -
StrictCostEnforcementForVAP                          G! -  -  -
StrictCostEnforcementForWebhooks                     G! -  -  -
StrictIPCIDRValidation                               a  a  B  B
StructuredAuthenticationConfiguration                G! G! G! -
StructuredAuthenticationConfigurationEgressSelector  B  B  B  B
StructuredAuthenticationConfigurationJWKSMetrics     -  B  B  B
StructuredAuthorizationConfiguration                 G! G! -  -
SupplementalGroupsPolicy                             B  G! G! G!
SystemdWatchdog                                      B  G! G! G!
TaintTolerationComparisonOperators                   -  a  a  a
TokenRequestServiceAccountUIDValidation              B  B  B  B
TopologyAwareHints                                   G! G! -  -
TopologyAwareWorkloadScheduling                      -  -  a  a
TopologyManagerPolicyAlphaOptions                    a  a  a  a
TopologyManagerPolicyBetaOptions                     B  B  B  B
TopologyManagerPolicyOptions                         G  G  G! G!
TranslateStreamCloseWebsocketRequests                B  B  B  B
UnauthenticatedHTTP2DOSMitigation                    B  B  B  B
UnknownVersionInteroperabilityProxy                  a  a  B  B
UnlockWhileProcessingFIFO                            -  -  B  B
UserNamespacesHostNetworkSupport                     -  a  a  a
UserNamespacesPodSecurityStandards                   a  -  -  -
UserNamespacesSupport                                B  B  G! G!
VolumeAttributesClass                                G  G  G! G!
VolumeBindMountOptions                               -  -  -  a
VolumeLimitScaling                                   -  a  a  B
WatchCacheInitializationPostStartHook                b  b  B  G!
WatchFromStorageWithoutResourceVersion               d! d! -  -
WatchList                                            B  B  B  B
WatchListClient                                      b  B  B  B
WatchListCompression                                 -  -  -  B
WebhookRoundTripLoadBalancing                        -  -  -  B
WinDSR                                               G! G! G! G!
WinOverlay                                           G! G! G! G!
WindowsCPUAndMemoryAffinity                          a  a  a  a
WindowsGracefulNodeShutdown                          B  B  B  B
WindowsHostNetwork                                   d  d  d  d
WorkloadAwarePreemption                              -  -  a  -
WorkloadWithJob                                      -  -  a  a"""

# A gate and those that it depends on; `@37`: since 1.37.
_DEPENDENCIES: Final = """\
AuthorizeNodeWithSelectors AuthorizeWithSelectors
ClusterTrustBundleProjection ClusterTrustBundle
CompositePodGroup GenericWorkload TopologyAwareWorkloadScheduling
DRAAdminAccess DynamicResourceAllocation
DRAConsumableCapacity DynamicResourceAllocation
DRADerivedAttributes DynamicResourceAllocation
DRADeviceBindingConditions DynamicResourceAllocation DRAResourceClaimDeviceStatus
DRADeviceCompatibilityGroups DynamicResourceAllocation DRAPartitionableDevices
DRADeviceTaintRules DRADeviceTaints
DRADeviceTaints DynamicResourceAllocation
DRAExtendedResource DynamicResourceAllocation
DRAFractionalCapacityRange DRAConsumableCapacity
DRAListTypeAttributes DynamicResourceAllocation
DRANodeAllocatableResources DynamicResourceAllocation
DRAOptionalNodeOperations DynamicResourceAllocation NodeDeclaredFeatures
DRAPartitionableDevices DynamicResourceAllocation
DRAPartitionableDevicesType DynamicResourceAllocation DRAPartitionableDevices DRAResourcePoolStatus
DRAPrioritizedList DynamicResourceAllocation
DRAResourceClaimGranularStatusAuthorization DynamicResourceAllocation DRAResourceClaimDeviceStatus
DRAResourcePoolStatus DynamicResourceAllocation
DRASchedulerFilterTimeout DynamicResourceAllocation
DRAWorkloadResourceClaims DynamicResourceAllocation GenericWorkload
DeclarativeValidationBeta DeclarativeValidation
DeclarativeValidationTakeover DeclarativeValidation
DisableAllocatorDualWrite MultiCIDRServiceAllocator
EventedPLEG PLEGOnDemandRelist@37
ExtendWebSocketsToKubelet NodeDeclaredFeatures
GangScheduling GenericWorkload
GracefulNodeShutdownBasedOnPodPriority GracefulNodeShutdown
H2CContainerProbe NodeDeclaredFeatures
ImageVolumeWithDigest ImageVolume
InPlacePodLevelResourcesVerticalScaling InPlacePodVerticalScaling PodLevelResources NodeDeclaredFeatures
InPlacePodVerticalScalingAllocatedStatus InPlacePodVerticalScaling
InPlacePodVerticalScalingExclusiveCPUs InPlacePodVerticalScaling
InPlacePodVerticalScalingExclusiveMemory InPlacePodVerticalScaling MemoryManager
InPlacePodVerticalScalingInitContainers InPlacePodVerticalScaling NodeDeclaredFeatures
InPlacePodVerticalScalingMemoryBackedVolumes InPlacePodVerticalScaling NodeDeclaredFeatures
InPlacePodVerticalScalingSchedulerPreemption InPlacePodVerticalScaling
KubeletAllocatedPodsEndpoint InPlacePodVerticalScaling
MatchLabelKeysInPodTopologySpreadSelectorMerge MatchLabelKeysInPodTopologySpread
NodeControllerLeaseCircuitBreaker AtomicFIFO
PodCertificateRequest AuthorizeNodeWithSelectors
PodGroupPreemptionPolicy GenericWorkload
PodLevelResourceManagers PodLevelResources
PodLevelResourcesFixDefaulting PodLevelResources
PodLevelResourcesFixKubeletQOSClass PodLevelResources
PodLifecycleSleepActionAllowZero PodLifecycleSleepAction
ProcMountType UserNamespacesSupport
ResourceHealthStatus DynamicResourceAllocation
ResourceHealthStatusMessage ResourceHealthStatus
RestartAllContainersOnContainerExits ContainerRestartRules NodeDeclaredFeatures
ServiceAccountTokenNodeBinding ServiceAccountTokenNodeBindingValidation
StaleControllerConsistencyDaemonSet AtomicFIFO
StaleControllerConsistencyHPA AtomicFIFO
StaleControllerConsistencyJob AtomicFIFO
StaleControllerConsistencyReplicaSet AtomicFIFO
StaleControllerConsistencyStatefulSet AtomicFIFO
StorageVersionAPI APIServerIdentity
StructuredAuthenticationConfigurationEgressSelector StructuredAuthenticationConfiguration
StructuredAuthenticationConfigurationJWKSMetrics StructuredAuthenticationConfiguration
TopologyAwareWorkloadScheduling GenericWorkload
UnknownVersionInteroperabilityProxy APIServerIdentity
UserNamespacesHostNetworkSupport UserNamespacesSupport NodeDeclaredFeatures@36
WindowsCPUAndMemoryAffinity MemoryManager
WindowsGracefulNodeShutdown GracefulNodeShutdown
WorkloadAwarePreemption GangScheduling
WorkloadWithJob GenericWorkload"""


class KubeletRules(Struct, frozen=True):
    """The rules of one minor version, 1.``minor``.

    ``stable_options`` and ``beta_options``: options of CPU Manager and Topology Manager that need no feature
    gate, and those behind the gates for beta-level options (``policy_options.go``); the rest are alpha.
    ``refuses_gates``: it does not start with feature gates that it does not take (`faults`).
    OpenShift's only warns of those that it does not know; which ones a version beyond the table has is open.
    ``throttling_factor``: the default of memoryThrottlingFactor; None: no memory.high.
    ``factor_without_memory_qos``: the only memoryThrottlingFactor that may be set where MemoryQoS is off;
    None: any (``pkg/kubelet/apis/config/validation``).
    ``later_keys``: the keys of its file that 1.34 did not know (``config/v1beta1/types.go``).
    ``resets_memory_qos``: every container gets memory.min and memory.low 0 where nothing else is due, or with
    the gate off memory.high max, so that a value of an earlier kubelet does not last
    (``kuberuntime_container_linux.go``); and so does kubepods at each start
    (``qos_container_manager_linux.go``).
    ``throttles_pods``: a pod with resources as a whole and a memory limit gets memory.high itself, and its
    containers without a limit of their own none (``ApplyPodLevelMemoryHigh``).
    ``throttles_without_amounts``: a container with neither request nor limit gets memory.high, too.
    ``limits_by_container``: a pod's own limits are written only if each container has one; before, an init
    container passed by the limit of a sidecar before it (``helpers_linux.go``).
    ``qos_by_container``: a pod's class follows from the classes of its containers, and ``resources: {}`` of
    a pod counts as absent (``pkg/apis/core/v1/helper/qos``); before, from sums over the pod.
    ``shares_of_rest_below_zero``: a container is scored below its request where the containers request more
    than their pod (``pkg/kubelet/qos/helpers.go``).
    ``huge_pages_unavailable``: memory of huge pages does not count as available to evictions
    (HugepageAwareEviction, ``server/stats/summary.go``).
    ``aligns_distribution``: align-by-socket counts beside distribute-cpus-across-numa
    (``cpu_assignment.go``).
    ``rounds_reserved_cpus_up``: the sum of kubeReserved and systemReserved is rounded up to a thousandth of a
    CPU (``Quantity.MilliValue``); later each of them to the nearest one, what is left of a millionth having
    been rounded up (``parseResourceList`` in ``cmd/kubelet/app/server.go``).
    ``skips_without_memory``: a container that has no memory to itself, in a pod with resources as a whole,
    passes by the Memory Manager (``memorymanager/policy_static.go``); before, it was refused where the
    Topology Manager had chosen no nodes for it.
    ``keeps_split_cores``: full-pcpus-only is not held against CPUs that a container has already
    (``cpumanager/policy_static.go``).
    """

    minor: int
    stable_options: frozenset[str]
    beta_options: frozenset[str]
    refuses_gates: bool = True
    throttling_factor: float | None = 0.9
    factor_without_memory_qos: float | None = None
    later_keys: frozenset[str] = frozenset()
    resets_memory_qos: bool = False
    throttles_pods: bool = False
    throttles_without_amounts: bool = False
    limits_by_container: bool = False
    qos_by_container: bool = False
    shares_of_rest_below_zero: bool = True
    huge_pages_unavailable: bool = False
    aligns_distribution: bool = False
    rounds_reserved_cpus_up: bool = True
    skips_without_memory: bool = False
    keeps_split_cores: bool = False

    def reserved_milli_cpus(self, nano_cpus: Sequence[int]) -> int:
        """The thousandths of a CPU that kubelet reserves for amounts in billionths."""
        if self.rounds_reserved_cpus_up:
            return -(-sum(nano_cpus) // 1_000_000)
        return sum((-(-amount // 1000) + 500) // 1000 for amount in nano_cpus)

    @property
    def memory_qos(self) -> bool:
        """The default of the feature gate MemoryQoS."""
        return gates_of(self.minor)["MemoryQoS"].default

    def __str__(self) -> str:
        return f"1.{self.minor}"


_IN_1_34: Final = KubeletRules(
    34,
    stable_options=frozenset({"full-pcpus-only", "prefer-closest-numa-nodes"}),
    beta_options=frozenset(
        {
            "distribute-cpus-across-numa",
            "prefer-align-cpus-by-uncorecache",
            "strict-cpu-reservation",
            "max-allowable-numa-nodes",
        }
    ),
)
_IN_1_35: Final = replace(
    _IN_1_34,
    minor=35,
    stable_options=_IN_1_34.stable_options | {"strict-cpu-reservation", "max-allowable-numa-nodes"},
    beta_options=frozenset({"distribute-cpus-across-numa", "prefer-align-cpus-by-uncorecache"}),
)
_IN_1_36: Final = replace(
    _IN_1_35,
    minor=36,
    stable_options=_IN_1_35.stable_options | {"prefer-align-cpus-by-uncorecache"},
    beta_options=frozenset({"distribute-cpus-across-numa"}),
    later_keys=frozenset({"memoryReservationPolicy", "tlsCurvePreferences"}),
)
_IN_1_37: Final = replace(
    _IN_1_36,
    minor=37,
    later_keys=_IN_1_36.later_keys | {"defaultPodSysctls"},
    throttling_factor=None,
    factor_without_memory_qos=0.9,
    resets_memory_qos=True,
    throttles_pods=True,
    throttles_without_amounts=True,
    limits_by_container=True,
    qos_by_container=True,
    shares_of_rest_below_zero=False,
    huge_pages_unavailable=True,
    aligns_distribution=True,
    rounds_reserved_cpus_up=False,
    skips_without_memory=True,
    keeps_split_cores=True,
)

KUBELET_RULES: Final = (_IN_1_34, _IN_1_35, _IN_1_36, _IN_1_37)
"""All rows, the oldest version first."""

NEWEST: Final = KUBELET_RULES[-1]


def rules_of(minor: int) -> KubeletRules:
    """The rules of Kubernetes 1.*minor*."""
    return KUBELET_RULES[min(max(minor - KUBELET_RULES[0].minor, 0), len(KUBELET_RULES) - 1)]
