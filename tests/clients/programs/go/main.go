// Transactional flows of Go's clients: programs franz|sarama ADDRESS TOPIC.
package main

import (
	"fmt"
	"os"
)

func must(err error) {
	if err != nil {
		fmt.Println("failed", err)
		os.Exit(1)
	}
}

func main() {
	switch os.Args[1] {
	case "franz":
		viaFranz(os.Args[2], os.Args[3])
	case "sarama":
		viaSarama(os.Args[2], os.Args[3])
	}
}
