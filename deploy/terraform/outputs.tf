locals {
  region = split(":", aws_dynamodb_table.this.arn)[3]
  store = join("", [
    "dynamodb://${aws_dynamodb_table.this.name}?region=${local.region}",
    var.results_bucket == null ? "" : "&offload=s3://${var.results_bucket}/results?region=${local.region}",
  ])
}

output "store" {
  description = "For --store and ONCE_STORE."
  value       = local.store
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

output "function_name" {
  description = "Null without function_zip."
  value       = one(aws_lambda_function.this[*].function_name)
}

output "function_role_arn" {
  description = "Null without function_zip. For permissions of your own."
  value       = one(aws_iam_role.function[*].arn)
}
