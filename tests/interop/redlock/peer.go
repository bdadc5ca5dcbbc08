// A Redlock of redsync on the same servers, told what to do line by line: see peer.py.
//
//	peer NAME PORT...
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredislib "github.com/redis/go-redis/v9"
)

func main() {
	var pools []redis.Pool
	for _, port := range os.Args[2:] {
		client := goredislib.NewClient(&goredislib.Options{Addr: "127.0.0.1:" + port})
		pools = append(pools, goredis.NewPool(client))
	}
	mutex := redsync.New(pools...).NewMutex(os.Args[1], redsync.WithExpiry(10*time.Second),
		redsync.WithTries(10000), redsync.WithRetryDelayFunc(func(int) time.Duration {
			return time.Duration(1+time.Now().UnixNano()%9) * time.Millisecond
		}))
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		args := strings.Fields(input.Text())
		done := false
		switch args[0] {
		case "try":
			done = mutex.TryLock() == nil
		case "unlock":
			done, _ = mutex.Unlock()
		case "count":
			times, _ := strconv.Atoi(args[2])
			done = count(mutex, args[1], times)
		}
		if done {
			fmt.Println("ok")
		} else {
			fmt.Println("no")
		}
	}
}

func count(mutex *redsync.Mutex, path string, times int) bool {
	for i := 0; i < times; i++ {
		if mutex.Lock() != nil {
			return false
		}
		text, _ := os.ReadFile(path)
		number, err := strconv.Atoi(string(text))
		if err != nil {
			return false
		}
		time.Sleep(time.Millisecond)
		os.WriteFile(path, []byte(strconv.Itoa(number+1)), 0o644)
		mutex.Unlock()
	}
	return true
}
