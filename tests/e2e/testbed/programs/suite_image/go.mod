module bayplan.dev/suite-image

go 1.22
