// A Lambda function on AWS's own runtime library, which knows how Lambda's Runtime API behaves. It does what its events
// say, as tests/lambda/function.cpp does.
package main

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"
)

type event struct {
	Do   string `json:"do"`
	Text string `json:"text"`
}

// Gives its text and then an error.
type breaking struct{ text io.Reader }

func (b breaking) Read(p []byte) (int, error) {
	n, err := b.text.Read(p)
	if err == io.EOF {
		return 0, errors.New("broken off")
	}
	return n, err
}

func handle(ctx context.Context, e event) (any, error) {
	switch e.Do {
	case "echo":
		return e, nil
	case "double":
		return e.Text + e.Text, nil
	case "fail":
		return nil, errors.New("the card was declined")
	case "panic":
		panic("all is lost")
	case "exit":
		os.Exit(3)
	case "hang":
		time.Sleep(time.Hour)
	case "stream":
		return strings.NewReader(e.Text), nil
	case "break":
		return breaking{strings.NewReader(e.Text)}, nil
	case "context":
		about, _ := lambdacontext.FromContext(ctx)
		deadline, _ := ctx.Deadline()
		return map[string]any{
			"request_id": about.AwsRequestID,
			"arn":        about.InvokedFunctionArn,
			"left_ms":    time.Until(deadline).Milliseconds(),
			"name":       lambdacontext.FunctionName,
			"version":    lambdacontext.FunctionVersion,
			"memory":     lambdacontext.MemoryLimitInMB,
		}, nil
	}
	return nil, errors.New("unknown event")
}

func main() { lambda.Start(handle) }
