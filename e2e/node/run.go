package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// Run is the node's life: it returns when in ends.
func Run(in io.Reader, out io.Writer) error {
	if os.Getpid() != 1 {
		return errors.New("node: only to be started by package cluster, as the first process of new namespaces")
	}
	messages, replies := json.NewDecoder(in), json.NewEncoder(out)
	var s Setup
	if err := messages.Decode(&s); err != nil {
		return fmt.Errorf("read setup: %w", err)
	}
	if err := reply(replies, prepare(s)); err != nil {
		return err
	}
	programs := supervise(s.LogDir)
	for {
		var c Command
		if err := messages.Decode(&c); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read command: %w", err)
		}
		if err := reply(replies, programs.do(c)); err != nil {
			return err
		}
	}
}

func prepare(s Setup) error {
	if err := mounts(s.Dir); err != nil {
		return err
	}
	if err := cgroups(s.Cgroup); err != nil {
		return err
	}
	return network(s)
}

func reply(to *json.Encoder, err error) error {
	var r Reply
	if err != nil {
		r.Error = err.Error()
	}
	return to.Encode(r)
}
