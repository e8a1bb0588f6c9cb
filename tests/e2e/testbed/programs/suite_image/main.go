// What cri-tools' validation suite wants of its images beyond busybox, by the name it is called by: `effective-uid`
// says as whom it runs (its file is root's, and runs as root whoever starts it), `nginx` serves a page on port 80
// under the name and with the file of its process id that nginx has.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
)

const (
	master  = "nginx: master process"
	program = "/bin/nginx"
	pidFile = "/var/run/nginx.pid"
)

func main() {
	if err := run(filepath.Base(os.Args[0])); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(name string) error {
	switch name {
	case "effective-uid":
		fmt.Printf("Effective uid: %d\n", os.Geteuid())
		return nil
	case "nginx":
		return syscall.Exec(program, []string{master}, os.Environ())
	case master:
		http.HandleFunc("/", func(answer http.ResponseWriter, _ *http.Request) {
			io.WriteString(answer, "here\n")
		})
		if err := os.WriteFile(pidFile, fmt.Appendln(nil, os.Getpid()), 0o644); err != nil {
			return err
		}
		return http.ListenAndServe(":80", nil)
	}
	return fmt.Errorf("called as %q, expected effective-uid or nginx", name)
}
