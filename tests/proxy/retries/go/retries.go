// retries URL CLIENT json|upload KEY: net/http with a loop of its own, or retryablehttp. It gives up its first try after
// a second. Prints the status and the body that the program gets in the end, as JSON.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"time"

	"github.com/hashicorp/go-retryablehttp"
)

const tries = 30

// Each try of an upload has a boundary of its own.
func content(kind string) (string, []byte) {
	if kind == "json" {
		return "application/json", []byte(`{"cents": 500}`)
	}
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	must(form.WriteField("purpose", "user_data"))
	file, err := form.CreateFormFile("file", "invoice.txt")
	must(err)
	_, err = file.Write([]byte("an invoice"))
	must(err)
	must(form.Close())
	return form.FormDataContentType(), body.Bytes()
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func withNetHTTP(url, kind, key string) *http.Response {
	client := &http.Client{Timeout: time.Second}
	for try := 1; ; try++ {
		contentType, body := content(kind)
		request, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
		must(err)
		request.Header.Set("Content-Type", contentType)
		request.Header.Set("Idempotency-Key", key)
		response, err := client.Do(request)
		if err == nil && response.StatusCode != http.StatusConflict {
			return response
		}
		if err == nil {
			response.Body.Close()
		}
		if try == tries {
			panic(fmt.Sprint("still ", response, err))
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func withRetryable(url, kind, key string) *http.Response {
	client := retryablehttp.NewClient()
	client.Logger = nil
	client.RetryMax = tries
	client.RetryWaitMin, client.RetryWaitMax = 200*time.Millisecond, time.Second
	client.HTTPClient.Timeout = time.Second
	policy := client.CheckRetry
	client.CheckRetry = func(at context.Context, response *http.Response, err error) (bool, error) {
		if response != nil && response.StatusCode == http.StatusConflict {
			return true, nil
		}
		return policy(at, response, err)
	}
	contentType, body := content(kind)
	request, err := retryablehttp.NewRequest(http.MethodPost, url, body)
	must(err)
	request.Header.Set("Content-Type", contentType)
	request.Header.Set("Idempotency-Key", key)
	response, err := client.Do(request)
	must(err)
	return response
}

func main() {
	url, client, kind, key := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	ask := map[string]func(string, string, string) *http.Response{"net/http": withNetHTTP, "retryablehttp": withRetryable}
	response := ask[client](url, kind, key)
	body, err := io.ReadAll(response.Body)
	must(err)
	must(json.NewEncoder(os.Stdout).Encode(map[string]any{"status": response.StatusCode, "body": string(body)}))
}
