// Command probe is what the tests of the cluster run in a pod: it says who it
// is and what it can do there, one finding a line.
//
//	probe whoami    the user, and whether the root file system can be written
//	probe reach …   the status that a URL answers, whether an address takes connections
//	probe wait      until it is told to stop
package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("usage: probe whoami | reach URL|ADDR… | wait")
	}
	switch args[0] {
	case "whoami":
		fmt.Printf("uid %d\n", os.Getuid())
		fmt.Printf("write: %v\n", os.WriteFile("/written", nil, 0o600))
	case "reach":
		for _, target := range args[1:] {
			found, err := reach(target)
			if err != nil {
				return err
			}
			fmt.Printf("%s: %s\n", target, found)
		}
	case "wait":
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGTERM)
		fmt.Println("waiting")
		<-stop
		fmt.Println("told to stop")
	default:
		return fmt.Errorf("unknown: %q", args[0])
	}
	return nil
}

func reach(target string) (string, error) {
	const patience = 5 * time.Second
	if strings.HasPrefix(target, "http") {
		client := http.Client{Timeout: patience}
		answer, err := client.Get(target)
		if err != nil {
			return "", err
		}
		return answer.Status, answer.Body.Close()
	}
	conn, err := net.DialTimeout("tcp", target, patience)
	if err != nil {
		return "", err
	}
	return "open", conn.Close()
}
