// Command probe is what the tests of the cluster run in a pod: it says who it
// is and what it can do there, one finding a line.
//
//	probe whoami        the user, and whether the root file system can be written
//	probe get URL…      the status of each answer
//	probe dial ADDR…    whether each address takes connections
//	probe wait          until it is told to stop
package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const patience = 5 * time.Second

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("usage: probe whoami | get URL… | dial ADDR… | wait")
	}
	switch args[0] {
	case "whoami":
		fmt.Printf("uid %d\n", os.Getuid())
		fmt.Printf("write: %v\n", os.WriteFile("/written", nil, 0o600))
	case "get":
		client := http.Client{Timeout: patience}
		for _, url := range args[1:] {
			answer, err := client.Get(url)
			if err != nil {
				return err
			}
			answer.Body.Close()
			fmt.Printf("%s: %s\n", url, answer.Status)
		}
	case "dial":
		for _, addr := range args[1:] {
			conn, err := net.DialTimeout("tcp", addr, patience)
			if err != nil {
				return err
			}
			conn.Close()
			fmt.Printf("%s: open\n", addr)
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
