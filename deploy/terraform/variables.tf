variable "table_name" {
  type        = string
  default     = "once"
  description = "The table's name, 3 to 255 characters."
}

variable "deletion_protection" {
  type        = bool
  default     = true
  description = "Refuse to delete the table. Without its records every operation runs again."
}

variable "point_in_time_recovery" {
  type        = bool
  default     = false
  description = "Keep the table's history for 35 days, to bring back what was lost. Costs by size."
}

variable "results_bucket" {
  type        = string
  default     = null
  description = "The name of a bucket to make for results that are too large for an item of 400 KB. Null makes none."
}

variable "large_result_days" {
  type        = number
  default     = 8
  description = "After how many days a large result is deleted. More than the longest retention of a record."
}

variable "function_zip" {
  type        = string
  default     = null
  description = "A zip with the program `bootstrap`, as `make lambda` makes it, for a function with its role. Null makes none."
}

variable "function_name" {
  type        = string
  default     = "once"
  description = "The name of that function."
}

variable "function_architecture" {
  type        = string
  default     = "x86_64"
  description = "x86_64 or arm64: what its program was built for."
}

variable "function_timeout" {
  type        = number
  default     = 30
  description = "Its timeout in seconds."
}

variable "function_metrics" {
  type        = bool
  default     = false
  description = "Let it write its metrics (ONCE_METRICS=emf). CloudWatch charges for them."
}

variable "count_open_records" {
  type        = bool
  default     = false
  description = "Count overdue and unknown records every five minutes, as CloudWatch metrics. CloudWatch charges for both."
}

variable "alarm_function" {
  type        = string
  default     = null
  description = "The name of a Lambda function that writes its metrics (ONCE_METRICS=emf), for alarms. Null makes none."
}

variable "alarm_topic_arn" {
  type        = string
  default     = null
  description = "The ARN of an SNS topic that the alarms tell. Null for none."
}

variable "nothing_started_hours" {
  type        = number
  default     = 24
  description = "After how many hours without a new operation there is an alarm, 1 to 24. 0 for never."

  validation {
    condition     = contains(range(25), var.nothing_started_hours)
    error_message = "A whole number from 0 to 24."
  }
}

variable "running_at_once" {
  type        = number
  default     = 0
  description = "How many operations usually run at once. So many may have begun and not ended."
}

variable "tags" {
  type        = map(string)
  default     = {}
  description = "Tags of the table, the bucket, the policies, the functions and the alarms."
}
