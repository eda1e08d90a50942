// Package node is the first process of a cluster: pid 1 of namespaces of its
// own (pid, mount, network, host name, IPC, cgroup), in which every program of the
// cluster and every pod lives. When it ends, the kernel kills all of them and
// takes their mounts, interfaces and firewall rules along; the machine outside
// never had any.
//
// The process that started it talks to it over stdin and stdout, and holds it
// alive by that: when stdin ends, the node ends. So nothing outlives a test
// process that is killed.
package node
