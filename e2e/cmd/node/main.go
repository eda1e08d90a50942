// Command node is the first process of a cluster; package node says more.
package main

import (
	"fmt"
	"os"

	"github.com/duesday/duesday/e2e/node"
)

func main() {
	if err := node.Run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
