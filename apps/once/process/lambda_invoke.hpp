// The work of `once lambda invoke`: a Lambda function on this machine, against our own Runtime API.
#pragma once

#include "settings/lambda_options.hpp"

namespace once::cli {

// Blocks until all events have a response. Returns the exit code. Throws Exception.
int lambda_invoke(const InvokeOptions& options);

}  // namespace once::cli
