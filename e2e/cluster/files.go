package cluster

import (
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/duesday/duesday/e2e/node"
)

const (
	pauseImage  = "localhost/duesday/pause:e2e"
	services    = "10.96.0.0/16"
	apiService  = "10.96.0.1"
	pods        = "10.244.0.0/24"
	apiPort     = "6443"
	runtimeSock = "/run/containerd/containerd.sock"
)

// users are the tokens' owners; the bootstrap policy of RBAC knows them all but
// the first.
var users = []struct{ file, name, group string }{
	{"kubeconfig", "admin", "system:masters"},
	{"kube-controller-manager", "system:kube-controller-manager", ""},
	{"kube-scheduler", "system:kube-scheduler", ""},
	{"kube-proxy", "system:kube-proxy", ""},
	{"kubelet", "system:node:" + node.Name, "system:nodes"},
}

// writeFiles writes what the programs read: keys, kubeconfigs, configurations.
func (l *local) writeFiles() error {
	if err := writeKeys(l.dir, net.ParseIP(l.link.node), net.ParseIP(apiService), net.IPv4(127, 0, 0, 1)); err != nil {
		return err
	}
	var tokens strings.Builder
	for _, u := range users {
		token := rand.Text()
		fmt.Fprintf(&tokens, "%s,%s,%s,%q\n", token, u.name, u.name, u.group)
		if err := clientcmd.WriteToFile(kubeconfig(l.path("ca.crt"), l.link.node, token), l.path(u.file)); err != nil {
			return err
		}
	}
	if err := os.Mkdir(l.path("cni"), 0o755); err != nil {
		return err
	}
	for name, content := range map[string]string{
		"tokens.csv":        tokens.String(),
		"containerd.toml":   l.containerdConfig(),
		"kubelet.yaml":      l.kubeletConfig(),
		"resolv.conf":       "",
		"cni/pods.conflist": l.cniConfig(),
	} {
		if err := os.WriteFile(l.path(name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func kubeconfig(ca, address, token string) clientcmdapi.Config {
	const name = "duesday-e2e"
	return clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{name: {Server: "https://" + net.JoinHostPort(address, apiPort), CertificateAuthority: ca}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: {Token: token}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	}
}

// containerdConfig: version 2 is read by containerd 1 and 2. Without
// restrict_oom_score_adj every sandbox dies where the capability SYS_RESOURCE
// is missing, as in many containers.
func (l *local) containerdConfig() string {
	state := node.State(l.dir)
	return fmt.Sprintf(`version = 2
root = %q
state = %q
[grpc]
  address = %q
[plugins."io.containerd.internal.v1.opt"]
  path = %q
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %q
    conf_dir = %q
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
`, state+"/containerd", "/run/containerd", runtimeSock, state+"/opt", pauseImage, l.tools.cni, l.path("cni"))
}

func (l *local) cniConfig() string {
	return fmt.Sprintf(`{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}
]}
`, pods)
}

// kubeletConfig: cgroups of version 1 are still what many containers have.
func (l *local) kubeletConfig() string {
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://%s
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
failCgroupV1: false
failSwapOn: false
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
makeIPTablesUtilChains: false
evictionHard: {memory.available: 50Mi, nodefs.available: 1%%, imagefs.available: 1%%}
imageGCHighThresholdPercent: 100
resolvConf: %s
volumePluginDir: %s/volume-plugins
nodeStatusUpdateFrequency: 2s
syncFrequency: 10s
shutdownGracePeriod: 0s
`, runtimeSock, l.path("resolv.conf"), node.State(l.dir))
}
