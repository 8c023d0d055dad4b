// A shop on net/http. An order that is posted twice is charged once.
//
//	go run .
//	curl localhost:8000/orders -H 'X-Api-Key: alice' -H 'Idempotency-Key: order-17' --json '{"id": "17", "cents": 4000}'
//
// ONCE_STORE names the store; for several hosts it is PostgreSQL or DynamoDB.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"

	"once.invalid/once"
	"once.invalid/once/oncehttp"
)

type order struct {
	ID    string `json:"id"`
	Cents int    `json:"cents"`
}

func setting(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

// act is what must not happen twice: a call to the bank, a mail.
func act(line string) error {
	file, err := os.OpenFile("shop.log", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = fmt.Fprintln(file, line)
	return err
}

func place(w http.ResponseWriter, r *http.Request) {
	var placed order
	if err := json.NewDecoder(r.Body).Decode(&placed); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := act(fmt.Sprintf("charged order %s: %d", placed.ID, placed.Cents)); err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway) // It may have acted: an operator decides.
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	json.NewEncoder(w).Encode(map[string]string{"order": placed.ID, "receipt": "r-" + placed.ID})
}

func main() {
	client, err := once.New(once.Config{Store: setting("ONCE_STORE", "sqlite:shop.db")})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/orders", place)
	// In production take the client from its verified token: whoever knows another's header gets that one's answers.
	protect := oncehttp.Middleware(client, oncehttp.Options{Principal: oncehttp.Header("X-Api-Key")})
	listener, err := net.Listen("tcp", "127.0.0.1:"+setting("PORT", "8000"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("listening on port", listener.Addr().(*net.TCPAddr).Port)
	log.Fatal(http.Serve(listener, protect(mux)))
}
