package charttest

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Network is the NetworkPolicies of one namespace, read as the specification
// does: a pod that no policy selects is open, another may do what any of its
// policies allows.
type Network []*networkingv1.NetworkPolicy

// NewNetwork returns the policies among the objects.
func NewNetwork(all []Object) Network {
	var n Network
	for _, object := range all {
		if p, ok := object.(*networkingv1.NetworkPolicy); ok {
			n = append(n, p)
		}
	}
	return n
}

// Peer is the other end of a connection: a pod, of the same namespace if
// Namespace is nil, or else an address.
type Peer struct {
	Pod, Namespace map[string]string
	IP             string
}

// Egress tells whether a pod with these labels may connect to the peer.
func (n Network) Egress(pod map[string]string, to Peer, protocol corev1.Protocol, port int) (bool, error) {
	return n.allows(pod, to, protocol, port, networkingv1.PolicyTypeEgress)
}

// Ingress tells whether the peer may connect to a pod with these labels.
func (n Network) Ingress(pod map[string]string, from Peer, protocol corev1.Protocol, port int) (bool, error) {
	return n.allows(pod, from, protocol, port, networkingv1.PolicyTypeIngress)
}

func (n Network) allows(pod map[string]string, peer Peer, protocol corev1.Protocol, port int, way networkingv1.PolicyType) (bool, error) {
	open := true
	for _, policy := range n {
		selected, err := selects(&policy.Spec.PodSelector, pod)
		if err != nil {
			return false, fmt.Errorf("%s: %w", policy.Name, err)
		}
		if !selected || !slices.Contains(policy.Spec.PolicyTypes, way) {
			continue
		}
		open = false
		rules := policy.Spec.Egress
		if way == networkingv1.PolicyTypeIngress {
			rules = nil
			for _, r := range policy.Spec.Ingress {
				rules = append(rules, networkingv1.NetworkPolicyEgressRule{To: r.From, Ports: r.Ports})
			}
		}
		for _, r := range rules {
			if !hasPort(r.Ports, protocol, port) {
				continue
			}
			if found, err := hasPeer(r.To, peer); found || err != nil {
				return found, err
			}
		}
	}
	return open, nil
}

// hasPort: no ports are all ports.
func hasPort(ports []networkingv1.NetworkPolicyPort, protocol corev1.Protocol, port int) bool {
	return len(ports) == 0 || slices.ContainsFunc(ports, func(p networkingv1.NetworkPolicyPort) bool {
		if p.Protocol == nil || *p.Protocol != protocol {
			return false
		}
		if p.Port == nil {
			return true
		}
		return p.Port.Type == intstr.Int && p.Port.IntValue() <= port &&
			(p.Port.IntValue() == port || p.EndPort != nil && port <= int(*p.EndPort))
	})
}

// hasPeer: no peers are all of them.
func hasPeer(peers []networkingv1.NetworkPolicyPeer, peer Peer) (bool, error) {
	if len(peers) == 0 {
		return true, nil
	}
	for _, p := range peers {
		if p.IPBlock != nil {
			if peer.IP == "" {
				continue
			}
			inside, err := contains(p.IPBlock, peer.IP)
			if inside || err != nil {
				return inside, err
			}
			continue
		}
		if peer.IP != "" || (p.NamespaceSelector == nil && peer.Namespace != nil) {
			continue
		}
		pod, err := selects(p.PodSelector, peer.Pod)
		if err != nil {
			return false, err
		}
		namespace, err := selects(p.NamespaceSelector, peer.Namespace)
		if err != nil {
			return false, err
		}
		if pod && namespace {
			return true, nil
		}
	}
	return false, nil
}

func contains(block *networkingv1.IPBlock, ip string) (bool, error) {
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return false, err
	}
	for i, cidr := range append([]string{block.CIDR}, block.Except...) {
		prefix, err := netip.ParsePrefix(cidr)
		if err != nil {
			return false, err
		}
		if prefix.Contains(addr) != (i == 0) {
			return false, nil
		}
	}
	return true, nil
}

// selects: a selector that is not there leaves the choice to others.
func selects(selector *metav1.LabelSelector, set map[string]string) (bool, error) {
	if selector == nil {
		return true, nil
	}
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return false, err
	}
	return s.Matches(labels.Set(set)), nil
}
