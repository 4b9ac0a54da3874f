// Kubernetes for tests: the API server, the controller manager and etcd, unchanged, in one binary.
// One binary is linked once: linking takes 2 GB of memory.
//
//	kube apiserver|controller-manager|etcd FLAG...
package main

import (
	"fmt"
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: kube apiserver|controller-manager|etcd FLAG...")
		os.Exit(2)
	}
	program := os.Args[1]
	os.Args = append(os.Args[:1], os.Args[2:]...)
	switch program {
	case "apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	case "controller-manager":
		os.Exit(cli.Run(manager.NewControllerManagerCommand()))
	case "etcd":
		etcdmain.Main(os.Args)
	default:
		fmt.Fprintln(os.Stderr, "kube: no program", program)
		os.Exit(2)
	}
}
