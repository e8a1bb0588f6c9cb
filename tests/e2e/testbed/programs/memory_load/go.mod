module bayplan.dev/memory-load

go 1.22
