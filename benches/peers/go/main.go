// PEER WORKLOAD URL SECONDS TASKS: one turn of rueidislock or redsync, as benches/peers/README.md
// says.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"runtime/debug"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	"golang.org/x/sys/unix"
)

const (
	lease      = 30 * time.Second
	watchEvery = 200 * time.Millisecond
	watchFor   = time.Millisecond
	kept       = 5 * time.Millisecond
	gathering  = 500 * time.Millisecond
)

// A lock as one task uses it: waits as the library waits and gives what unlocks, or nil if it gave
// up.
type lock func() func()

type peer struct {
	module string
	lock   func(name string) lock
}

func main() {
	if len(os.Args) != 6 {
		fmt.Fprintln(os.Stderr, "usage: driver PEER WORKLOAD URL SECONDS TASKS")
		os.Exit(2)
	}
	name, workload, address := os.Args[1], os.Args[2], host(os.Args[3])
	seconds, err := strconv.ParseFloat(os.Args[4], 64)
	must(err)
	tasks, err := strconv.Atoi(os.Args[5])
	must(err)
	var p peer
	switch name {
	case "rueidislock":
		p = newRueidislock(address)
	case "redsync":
		p = newRedsync(address)
	default:
		panic("no such peer: " + name)
	}
	warmUp := 0.5
	if given, err := strconv.ParseFloat(os.Getenv("WARMUP"), 64); err == nil {
		warmUp = given
	}
	if workload == "hot" {
		hot(p, "bench:warm", warmUp, tasks, false, true)
	} else {
		uncontended(p, warmUp, tasks)
	}
	lines := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	lines.Scan()
	start := now()
	var all []*seen
	var overlaps int64
	switch workload {
	case "uncontended":
		all = uncontended(p, seconds, tasks)
	case "hot":
		all, overlaps = hot(p, "bench:hot", seconds, tasks, false, false)
	case "drain":
		held := p.lock("bench:drain")()
		var released int64
		go func() {
			time.Sleep(gathering)
			atomic.StoreInt64(&released, now())
			held()
		}()
		all, overlaps = hot(p, "bench:drain", seconds+gathering.Seconds(), tasks, true, false)
		start = atomic.LoadInt64(&released)
	default:
		all = []*seen{handoff(p, lines)}
	}
	report(name, version(p.module), workload, all, float64(now()-start)/1e9, overlaps)
	os.Exit(0) // whoever still waits for a lock waits in vain
}

// One key instead of a majority of three, as its documentation says for a single Redis.
func newRueidislock(address string) peer {
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{address}},
		KeyMajority:  1,
		KeyValidity:  lease,
	})
	must(err)
	return peer{"github.com/redis/rueidis", func(name string) lock {
		return func() func() {
			_, cancel, err := locker.WithContext(context.Background(), name)
			if err != nil {
				return nil
			}
			return cancel
		}
	}}
}

func newRedsync(address string) peer {
	client := redis.NewClient(&redis.Options{Addr: address})
	rs := redsync.New(goredis.NewPool(client))
	return peer{"github.com/go-redsync/redsync/v4", func(name string) lock {
		mutex := rs.NewMutex(name, redsync.WithExpiry(lease))
		return func() func() {
			if mutex.Lock() != nil {
				return nil
			}
			return func() {
				_, err := mutex.Unlock()
				must(err)
			}
		}
	}}
}

// What one task saw.
type seen struct {
	sync.Mutex
	times      []int64
	sections   [][2]int64
	failed     int64
	waitsSince int64
}

func uncontended(p peer, seconds float64, tasks int) []*seen {
	until := now() + int64(seconds*1e9)
	all := make([]*seen, tasks)
	var group sync.WaitGroup
	for task := range all {
		s := &seen{}
		all[task] = s
		take := p.lock(fmt.Sprintf("bench:own:%d:%d", os.Getpid(), task))
		group.Add(1)
		go func() {
			defer group.Done()
			for began := now(); began < until; {
				s.Lock()
				s.waitsSince = began
				s.Unlock()
				unlock := take()
				if unlock != nil {
					unlock()
				}
				done := now()
				s.Lock()
				if unlock == nil {
					s.failed++
				}
				s.times = append(s.times, done-began)
				s.waitsSince = 0
				s.Unlock()
				began = done
			}
		}()
	}
	drain(&group, 5*time.Second)
	return all
}

// Waits for all tasks, but not for ever.
func drain(group *sync.WaitGroup, patience time.Duration) {
	drained := make(chan struct{})
	go func() {
		group.Wait()
		close(drained)
	}()
	select {
	case <-drained:
	case <-time.After(patience):
	}
}

// One lock for all, which each wants over and over, or once. Tasks that wait when the time is over
// are left behind, unless drained.
func hot(p peer, name string, seconds float64, tasks int, once, drained bool) ([]*seen, int64) {
	until := now() + int64(seconds*1e9)
	var inside, overlaps, watchNext atomic.Int64
	watchNext.Store(now())
	all := make([]*seen, tasks)
	var group sync.WaitGroup
	for task := range all {
		s := &seen{}
		all[task] = s
		take := p.lock(name)
		group.Add(1)
		go func() {
			defer group.Done()
			for began := now(); began < until; began = now() {
				s.Lock()
				s.waitsSince = began
				s.Unlock()
				unlock := take()
				if unlock == nil {
					s.Lock()
					s.failed++
					s.Unlock()
					continue
				}
				if inside.Swap(1) != 0 {
					overlaps.Add(1)
				}
				enter := now()
				leave := enter
				if enter >= watchNext.Load() {
					watchNext.Store(enter + int64(watchEvery))
					time.Sleep(watchFor)
					leave = now()
				}
				if enter < until {
					s.Lock()
					s.times = append(s.times, enter-began)
					s.sections = append(s.sections, [2]int64{enter, leave})
					s.waitsSince = 0
					s.Unlock()
				}
				inside.Store(0)
				unlock()
				if once {
					return
				}
			}
		}()
	}
	if once {
		drain(&group, time.Duration(until-now()))
		return all, overlaps.Load()
	}
	time.Sleep(time.Duration(until - now()))
	if drained {
		drain(&group, 5*time.Second)
	}
	return all, overlaps.Load()
}

// Waits for the lock whenever a line comes in, and says "in" when it has it.
func handoff(p peer, lines *bufio.Scanner) *seen {
	take := p.lock("bench:ball")
	s := &seen{}
	for lines.Scan() {
		began := now()
		unlock := take()
		for ; unlock == nil; unlock = take() {
			s.failed++
		}
		enter := now()
		fmt.Println("in")
		time.Sleep(kept)
		s.times = append(s.times, enter-began)
		s.sections = append(s.sections, [2]int64{enter, now()})
		unlock()
	}
	return s
}

func report(name, version, workload string, all []*seen, seconds float64, overlaps int64) {
	var times []int64
	var sections [][2]int64
	var failed, longest int64
	least, most := -1, 0
	end := now()
	for _, s := range all {
		s.Lock()
		times = append(times, s.times...)
		sections = append(sections, s.sections...)
		failed += s.failed
		if served := len(s.times); least < 0 || served < least {
			least = served
		}
		most = max(most, len(s.times))
		if s.waitsSince != 0 {
			longest = max(longest, end-s.waitsSince)
		}
		s.Unlock()
	}
	sort.Slice(times, func(i, j int) bool { return times[i] < times[j] })
	sort.Slice(sections, func(i, j int) bool { return sections[i][0] < sections[j][0] })
	at := func(quantile float64) float64 {
		if len(times) == 0 {
			return 0
		}
		return float64(times[int(float64(len(times)-1)*quantile)]) / 1e3
	}
	if path := os.Getenv("SECTIONS"); path != "" && workload != "uncontended" {
		file, err := os.Create(path)
		must(err)
		out := bufio.NewWriter(file)
		must(binary.Write(out, binary.LittleEndian, sections))
		must(out.Flush())
		must(file.Close())
	}
	fmt.Printf(`{"peer":"%s","version":"%s","workload":"%s","ops":%d,"seconds":%.4f,"p50_us":%.1f,"p99_us":%.1f,`+
		`"longest_us":%.1f,"min_served":%d,"max_served":%d,"failed":%d,"overlaps":%d}`+"\n",
		name, version, workload, len(times), seconds, at(0.5), at(0.99),
		max(at(1), float64(longest)/1e3), least, most, failed, overlaps)
}

// CLOCK_MONOTONIC in nanoseconds, the same in all processes: read once, then Go's own clock on top.
var zero, zeroAt = clock()

func clock() (zero int64, zeroAt time.Time) {
	best := time.Hour
	for range 100 {
		var monotonic unix.Timespec
		before := time.Now()
		must(unix.ClockGettime(unix.CLOCK_MONOTONIC, &monotonic))
		if took := time.Since(before); took < best {
			best, zero, zeroAt = took, monotonic.Nano()-int64(took/2), before
		}
	}
	return
}

func now() int64 { return zero + int64(time.Since(zeroAt)) }

func version(module string) string {
	info, _ := debug.ReadBuildInfo()
	for _, dependency := range info.Deps {
		if dependency.Path == module {
			return strings.TrimPrefix(dependency.Version, "v")
		}
	}
	return "?"
}

func host(url string) string {
	return strings.TrimSuffix(strings.TrimPrefix(url, "redis://"), "/")
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
