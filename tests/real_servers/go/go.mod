// What is tested against once lambda invoke: AWS's own client of the Runtime API.
module once.example/real_servers

go 1.18

require github.com/aws/aws-lambda-go v1.47.0
