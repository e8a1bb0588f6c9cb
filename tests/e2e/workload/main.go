// The one program of the test containers, static and without dependencies:
//
//	workload pause               do nothing until told to end
//	workload touch BYTES [2Mi]   map BYTES of anonymous memory, with huge pages if asked, write to every page,
//	                             say "touched", keep it until told to end
//	workload tmpfs PATH BYTES    write a file of BYTES and keep it
//
// It ends with 0 on SIGTERM and SIGINT, also as process 1 of a container.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
)

const (
	mapHugetlb   = 0x40000
	mapHugeShift = 26
	pageBytes    = 4096
	chunkBytes   = 1 << 20
)

var hugePageLog2 = map[string]int{"2Mi": 21, "1Gi": 30}

func fail(format string, values ...any) {
	fmt.Fprintf(os.Stderr, "workload: "+format+"\n", values...)
	os.Exit(1)
}

func amount(text string) int {
	bytes, err := strconv.Atoi(text)
	if err != nil || bytes <= 0 {
		fail("%q is not a positive number of bytes", text)
	}
	return bytes
}

func touch(bytes int, flags int) []byte {
	memory, err := syscall.Mmap(-1, 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_PRIVATE|syscall.MAP_ANONYMOUS|flags)
	if err != nil {
		fail("mapping %d bytes: %v", bytes, err)
	}
	for offset := 0; offset < bytes; offset += pageBytes {
		memory[offset] = 1
	}
	return memory
}

func write(path string, bytes int) {
	file, err := os.Create(path)
	if err != nil {
		fail("%v", err)
	}
	chunk := make([]byte, chunkBytes)
	for left := bytes; left > 0; left -= len(chunk) {
		if left < len(chunk) {
			chunk = chunk[:left]
		}
		if _, err := file.Write(chunk); err != nil {
			fail("%v", err)
		}
	}
}

func main() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	var held []byte
	switch {
	case len(os.Args) == 2 && os.Args[1] == "pause":
	case len(os.Args) >= 3 && os.Args[1] == "touch":
		flags := 0
		if len(os.Args) == 4 {
			log2, known := hugePageLog2[os.Args[3]]
			if !known {
				fail("huge page size %q is not one of 2Mi, 1Gi", os.Args[3])
			}
			flags = mapHugetlb | log2<<mapHugeShift
		}
		held = touch(amount(os.Args[2]), flags)
		fmt.Println("touched")
	case len(os.Args) == 4 && os.Args[1] == "tmpfs":
		write(os.Args[2], amount(os.Args[3]))
		fmt.Println("written")
	default:
		fail("expected: pause | touch BYTES [2Mi|1Gi] | tmpfs PATH BYTES")
	}
	<-ended
	_ = held
}
