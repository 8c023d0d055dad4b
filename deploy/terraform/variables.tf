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

variable "tags" {
  type        = map(string)
  default     = {}
  description = "Tags of the table, the bucket and the policies."
}
