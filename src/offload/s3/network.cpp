// The S3 offload over the built-in client.
#include <utility>

#include <once/offload/s3.hpp>
#include <once/platform/system.hpp>

#include "aws/http_client.hpp"
#include "offload/s3/s3.hpp"

namespace once {

std::shared_ptr<Offload> make_s3_offload(S3Options options) {
  aws::HttpClientOptions http;
  http.ca_file = options.ca_file;
  http.max_body_bytes = std::size_t{5} << 30U;  // The largest object that one PutObject makes.
  if (options.credentials == nullptr) {
    options.credentials = aws::default_credentials({.profile = options.profile, .environment = options.environment});
  }
  return make_s3_offload(std::move(options), {.http = aws::make_http_client(std::move(http)),
                                              .clock = system_clock(),
                                              .timers = make_system_timers(),
                                              .random = system_random()});
}

}  // namespace once
