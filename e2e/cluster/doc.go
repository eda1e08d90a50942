// Package cluster brings up a real Kubernetes on this machine, for tests: etcd,
// API server, controller manager, scheduler, proxy and kubelet of one release,
// on containerd and runc, without a registry, a container engine or a virtual
// machine. It needs Linux and root.
//
// The whole cluster lives in namespaces of its own (see package node), joined to
// the machine by one pair of interfaces. The test process stays outside. It
// reaches the API server and hostNetwork pods at the node's address; pods reach
// the machine at [Cluster.HostIP], and what listens on the machine's loopback
// through [Cluster.Expose]. Beyond the machine the cluster reaches nothing.
// There is no DNS: give pods addresses.
//
// Close takes everything away, and so does the death of the test process, kill
// -9 included; in that case a folder with logs and empty cgroups stay, which the
// next Start removes. Several clusters can run side by side.
//
// Given a kubeconfig, the package uses the cluster that it names instead, and
// then only what says so works: see [Options].
package cluster
