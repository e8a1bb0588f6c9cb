// What uses memory in the scenarios about memory pressure, static and without dependencies:
//
//	memory_load vary LOW HIGH RATE   anonymous memory rises to HIGH and falls to LOW, again and again
//	memory_load read PATH SIZE RATE  reads a file of SIZE over and over, so that it stays in the page cache
//	memory_load copy SIZE            copies SIZE of memory to another SIZE, as a streaming program does
//	memory_load after PATH WORD...   any of these, once there is such a file
//
// Sizes are bytes, rates bytes per second. vary says every few seconds how long the kernel took for a page
// fault, copy how many bytes per second it copied while it did, each as a line of JSON that replaces the one before.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"
	"time"
)

const (
	pageBytes  = 4096
	chunkBytes = 1 << 20
	sayEvery   = 2 * time.Second
	// Between two copies: others want the CPU as well.
	copyPause = 300 * time.Millisecond
	gatePause = 500 * time.Millisecond
	// Time of a fault is counted in classes: a sixteenth of the power of two below it wide.
	classesPerPower = 16
	powers          = 40
)

func fail(format string, values ...any) {
	fmt.Fprintf(os.Stderr, "memory_load: "+format+"\n", values...)
	os.Exit(1)
}

func number(text string) int {
	found, err := strconv.Atoi(text)
	if err != nil || found <= 0 {
		fail("%q is not a positive number", text)
	}
	return found
}

func reserve(bytes int) []byte {
	// Only what is touched is used: the kernel need not have all of it.
	memory, err := syscall.Mmap(-1, 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_PRIVATE|syscall.MAP_ANONYMOUS|syscall.MAP_NORESERVE)
	if err != nil {
		fail("mapping %d bytes: %v", bytes, err)
	}
	// A page at a time, so that each fault is one page.
	if err := syscall.Madvise(memory, 15); err != nil { // MADV_NOHUGEPAGE
		fail("small pages: %v", err)
	}
	return memory
}

func say(values map[string]any) {
	line, _ := json.Marshal(values)
	fmt.Println(string(line))
}

// rate holds back so that no more than bytesPerSecond pass.
type rate struct {
	bytesPerSecond int
	next           time.Time
}

func (r *rate) pass(bytes int) {
	if now := time.Now(); r.next.Before(now) {
		r.next = now
	}
	r.next = r.next.Add(time.Duration(bytes) * time.Second / time.Duration(r.bytesPerSecond))
	time.Sleep(time.Until(r.next))
}

// faults is a histogram of times.
type faults struct {
	counts  [powers * classesPerPower]int
	total   int
	longest time.Duration
}

func (f *faults) add(took time.Duration) {
	power, rest := 0, uint64(max(took, 1))
	for rest >= 2*classesPerPower {
		rest >>= 1
		power++
	}
	f.counts[min(len(f.counts)-1, power*classesPerPower+int(rest))]++
	f.total++
	f.longest = max(f.longest, took)
}

func (f *faults) quantile(part float64) time.Duration {
	left := int(part * float64(f.total))
	for class, count := range f.counts {
		if left -= count; left < 0 {
			// The classes from 16 on are those of power 0, and so on.
			power := max(0, class/classesPerPower-1)
			return time.Duration(class-power*classesPerPower) << power
		}
	}
	return f.longest
}

// rise touches memory from one offset to another, and times each page.
func (f *faults) rise(memory []byte, from, to int, held *rate) {
	for first := from; first < to; first += chunkBytes {
		last := min(first+chunkBytes, to)
		for offset := first; offset < last; offset += pageBytes {
			begun := time.Now()
			memory[offset] = 1
			f.add(time.Since(begun))
		}
		held.pass(last - first)
	}
}

func vary(low, high int, held *rate) {
	low -= low % pageBytes
	memory, seen, said := reserve(high), &faults{}, time.Now()
	from := 0
	for {
		for from < high {
			to := min(from+8*chunkBytes, high)
			seen.rise(memory, from, to, held)
			from = to
			if time.Since(said) >= sayEvery {
				said = time.Now()
				say(map[string]any{"faults": seen.total, "p50_us": seen.quantile(0.5).Microseconds(),
					"p99_us": seen.quantile(0.99).Microseconds(), "longest_us": seen.longest.Microseconds()})
			}
		}
		if err := syscall.Madvise(memory[low:], syscall.MADV_DONTNEED); err != nil {
			fail("giving memory back: %v", err)
		}
		from = low
	}
}

func read(path string, size int, held *rate) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		fail("%v", err)
	}
	// A file of holes: its pages in the cache are as good as others, and no disk has to hold them.
	if err := file.Truncate(int64(size)); err != nil {
		fail("%v", err)
	}
	chunk := make([]byte, chunkBytes)
	for {
		got, err := file.Read(chunk)
		if err == io.EOF {
			_, err = file.Seek(0, io.SeekStart)
		}
		if err != nil {
			fail("%v", err)
		}
		held.pass(got)
	}
}

func copyForEver(size int) {
	source, target := reserve(size), reserve(size)
	for offset := 0; offset < size; offset += pageBytes {
		source[offset] = 1
	}
	copied, spent, said := 0, time.Duration(0), time.Now()
	for {
		begun := time.Now()
		copied += copy(target, source)
		spent += time.Since(begun)
		if time.Since(said) >= sayEvery {
			said = time.Now()
			say(map[string]any{"bytes_per_s": int(float64(copied) / spent.Seconds())})
		}
		time.Sleep(copyPause)
	}
}

func main() {
	words := os.Args[1:]
	if len(words) > 2 && words[0] == "after" {
		for _, err := os.Stat(words[1]); err != nil; _, err = os.Stat(words[1]) {
			time.Sleep(gatePause)
		}
		words = words[2:]
	}
	switch {
	case len(words) == 4 && words[0] == "vary" && number(words[1]) < number(words[2]):
		vary(number(words[1]), number(words[2]), &rate{bytesPerSecond: number(words[3])})
	case len(words) == 4 && words[0] == "read":
		read(words[1], number(words[2]), &rate{bytesPerSecond: number(words[3])})
	case len(words) == 2 && words[0] == "copy":
		copyForEver(number(words[1]))
	default:
		fail("expected: [after PATH] vary LOW HIGH RATE | read PATH SIZE RATE | copy SIZE")
	}
}
