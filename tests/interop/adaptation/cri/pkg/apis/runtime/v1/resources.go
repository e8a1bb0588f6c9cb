// Package v1 has what NRI up to 0.8 needs of the CRI to compile: the types of a conversion that nothing calls here.
// The whole package would bring all of gRPC along, which takes longer to build than everything else together.
package v1

type LinuxContainerResources struct {
	CpuPeriod          int64
	CpuQuota           int64
	CpuShares          int64
	MemoryLimitInBytes int64
	OomScoreAdj        int64
	CpusetCpus         string
	CpusetMems         string
	HugepageLimits     []*HugepageLimit
	Unified            map[string]string
}

type HugepageLimit struct {
	PageSize string
	Limit    uint64
}
