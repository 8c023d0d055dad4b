// The S3 offload, with its network, clock and randomness as arguments.
#pragma once

#include <memory>

#include <once/clock.hpp>
#include <once/offload/s3.hpp>

namespace once::aws {
class HttpClient;
}

namespace once {

struct S3Ports {
  std::shared_ptr<aws::HttpClient> http = {};
  std::shared_ptr<Clock> clock = {};
  std::shared_ptr<Timers> timers = {};
  std::shared_ptr<Random> random = {};
};

// `options.credentials` must be set.
std::shared_ptr<Offload> make_s3_offload(S3Options options, S3Ports ports);

}  // namespace once
