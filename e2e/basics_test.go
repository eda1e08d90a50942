package e2e

import (
	"net"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/duesday/duesday/internal/pgtest"
	"github.com/duesday/duesday/internal/stripesim"
)

// The tests of this file are of the cluster itself: what the others stand on.

func TestPod_runsUnprivilegedAndItsLogsCanBeRead(t *testing.T) {
	t.Parallel()
	_, client := onCluster(t)
	ns := newNamespace(t, client)
	createPod(t, client, ns, "whoami")
	require.Equal(t, corev1.PodSucceeded, podEnds(t, client, ns, "probe"))
	require.Equal(t, "uid 65532\nwrite: open /written: read-only file system\n", podLogs(t, ns, "probe"))
}

func TestPod_reachesTheMachineAndTheAPI(t *testing.T) {
	t.Parallel()
	c, client := onCluster(t)
	ns := newNamespace(t, client)
	stripe, err := c.ExposeURL(stripesim.Start(t, stripesim.Options{}).URL)
	require.NoError(t, err)
	db, err := c.ExposeURL(pgtest.New(t).URL)
	require.NoError(t, err)
	postgres, err := url.Parse(db)
	require.NoError(t, err)
	here, err := net.Listen("tcp", net.JoinHostPort(c.HostIP(), "0"))
	require.NoError(t, err)
	defer here.Close()
	api, err := client.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	require.NoError(t, err)
	service := net.JoinHostPort(api.Spec.ClusterIP, "443")

	createPod(t, client, ns, "reach", stripe+"/v1/charges", postgres.Host, here.Addr().String(), service)
	require.Equal(t, corev1.PodSucceeded, podEnds(t, client, ns, "probe"), podLogs(t, ns, "probe"))
	require.Equal(t, stripe+"/v1/charges: 401 Unauthorized\n"+postgres.Host+": open\n"+
		here.Addr().String()+": open\n"+service+": open\n", podLogs(t, ns, "probe"))
}

func TestCronJob_firesAndCanBeRunByHand(t *testing.T) {
	t.Parallel()
	c, client := onCluster(t)
	ns := newNamespace(t, client)
	_, err := client.BatchV1().CronJobs(ns).Create(t.Context(), &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Name: "probe"},
		Spec: batchv1.CronJobSpec{
			Schedule:    "* * * * *",
			JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: probeSpec("whoami")}}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)

	_, err = c.Kubectl(t.Context(), "-n", ns, "create", "job", "by-hand", "--from=cronjob/probe")
	require.NoError(t, err)
	_, err = c.Kubectl(t.Context(), "-n", ns, "wait", "--for=condition=Complete", "--timeout=3m", "job/by-hand")
	require.NoError(t, err)

	var fired batchv1.Job
	eventually(t, "the schedule's Job to complete", func() bool {
		jobs, err := client.BatchV1().Jobs(ns).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		for _, j := range jobs.Items {
			if j.Name != "by-hand" && j.Status.Succeeded > 0 {
				fired = j
				return true
			}
		}
		return false
	})
	require.Contains(t, fired.Annotations, batchv1.CronJobScheduledTimestampAnnotation)
}

func TestKillContainer_killsAtOnce(t *testing.T) {
	t.Parallel()
	c, client := onCluster(t)
	ns := newNamespace(t, client)
	createPod(t, client, ns, "wait")
	eventually(t, "the pod to run", func() bool {
		p, err := client.CoreV1().Pods(ns).Get(t.Context(), "probe", metav1.GetOptions{})
		require.NoError(t, err)
		return p.Status.Phase == corev1.PodRunning
	})
	require.NoError(t, c.KillContainer(t.Context(), ns, "probe"))
	require.Equal(t, corev1.PodFailed, podEnds(t, client, ns, "probe"))
	p, err := client.CoreV1().Pods(ns).Get(t.Context(), "probe", metav1.GetOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 137, p.Status.ContainerStatuses[0].State.Terminated.ExitCode)
	require.Equal(t, "waiting\n", podLogs(t, ns, "probe"))
}

// createPod runs the probe in a pod of the same name.
func createPod(t *testing.T, client kubernetes.Interface, ns string, args ...string) {
	t.Helper()
	_, err := client.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "probe"},
		Spec:       probeSpec(args...),
	}, metav1.CreateOptions{})
	require.NoError(t, err)
}

func probeSpec(args ...string) corev1.PodSpec {
	return corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot:   new(true),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{{
			Name: "probe", Image: probeImage, ImagePullPolicy: corev1.PullIfNotPresent, Args: args,
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: new(false),
				ReadOnlyRootFilesystem:   new(true),
				Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
		}},
	}
}

// podEnds waits for a pod's end and returns how it ended.
func podEnds(t *testing.T, client kubernetes.Interface, ns, name string) (phase corev1.PodPhase) {
	t.Helper()
	eventually(t, "the end of pod "+name, func() bool {
		p, err := client.CoreV1().Pods(ns).Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		phase = p.Status.Phase
		return phase == corev1.PodSucceeded || phase == corev1.PodFailed
	})
	return phase
}

func podLogs(t *testing.T, ns, name string) string {
	t.Helper()
	said, err := shared.Kubectl(t.Context(), "-n", ns, "logs", name)
	require.NoError(t, err)
	return said
}
