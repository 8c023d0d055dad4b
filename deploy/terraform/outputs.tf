locals {
  region = split(":", aws_dynamodb_table.this.arn)[3]
}

output "store" {
  description = "For --store and ONCE_STORE."
  value = join("", [
    "dynamodb://${aws_dynamodb_table.this.name}?region=${local.region}",
    var.results_bucket == null ? "" : "&offload=s3://${var.results_bucket}/results?region=${local.region}",
  ])
}

output "table_arn" {
  value = aws_dynamodb_table.this.arn
}

output "worker_policy_arn" {
  value = aws_iam_policy.worker.arn
}

output "operator_policy_arn" {
  value = aws_iam_policy.operator.arn
}
