package cluster

import (
	"path/filepath"

	"github.com/duesday/duesday/e2e/node"
)

// built are the programs that are built from source.
var built = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"}

// program is how one of the cluster's programs is run.
func (l *local) program(name string) *node.Program {
	state := node.State(l.dir)
	p := &node.Program{Path: filepath.Join(l.bin, name)}
	switch name {
	case "containerd":
		p.Path = l.tools.containerd
		p.Args = []string{"--config", l.path("containerd.toml")}
	case "etcd":
		p.Args = []string{"--data-dir=" + state + "/etcd", "--unsafe-no-fsync", "--log-level=warn"}
	case "kube-apiserver":
		p.Args = []string{
			"--etcd-servers=http://127.0.0.1:2379",
			"--bind-address=0.0.0.0", "--secure-port=" + apiPort, "--advertise-address=" + l.link.node,
			"--cert-dir=" + state + "/api",
			"--tls-cert-file=" + l.path("api.crt"), "--tls-private-key-file=" + l.path("api.key"),
			"--service-cluster-ip-range=" + services,
			"--service-account-issuer=https://kubernetes.default.svc",
			"--service-account-signing-key-file=" + l.path("sa.key"), "--service-account-key-file=" + l.path("sa.pub"),
			"--authorization-mode=Node,RBAC", "--token-auth-file=" + l.path("tokens.csv"),
			"--enable-admission-plugins=NodeRestriction",
			"--kubelet-preferred-address-types=InternalIP",
		}
	case "kube-controller-manager":
		p.Args = []string{
			"--kubeconfig=" + l.path(name), "--cert-dir=" + state + "/" + name,
			"--use-service-account-credentials", "--service-account-private-key-file=" + l.path("sa.key"),
			"--root-ca-file=" + l.path("ca.crt"), "--leader-elect=false",
			"--controllers=*,-nodeipam,-node-route-controller,-service-lb-controller",
			"--flex-volume-plugin-dir=" + state + "/volume-plugins",
		}
	case "kube-scheduler":
		p.Args = []string{
			"--kubeconfig=" + l.path(name), "--cert-dir=" + state + "/" + name, "--leader-elect=false",
		}
	case "kube-proxy":
		p.Args = []string{
			"--kubeconfig=" + l.path(name), "--proxy-mode=iptables", "--cluster-cidr=" + pods,
			"--hostname-override=" + node.Name, "--conntrack-max-per-core=0",
		}
	case "kubelet":
		p.Args = []string{
			"--config=" + l.path("kubelet.yaml"), "--kubeconfig=" + l.path(name), "--root-dir=" + state + "/kubelet",
			"--cert-dir=" + state + "/kubelet-pki",
			"--hostname-override=" + node.Name, "--node-ip=" + l.link.node,
		}
	}
	return p
}
