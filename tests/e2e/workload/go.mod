module bayplan.dev/workload

go 1.22
