#include "operators/store_access.hpp"

#include <utility>

#include <once/engine/compression.hpp>

#include "platform/wait.hpp"

namespace once::operators {

void fetch_result(const std::shared_ptr<Offload>& offload, Result result, Callback<void(FetchedResult)> done) {
  if (result.placement == Placement::compressed) {
    FetchedResult whole{.result = std::move(result), .error = {}};
    whole.error = expand(whole.result);
    if (whole.error) whole.result.bytes.clear();
    return done(std::move(whole));
  }
  if (result.placement != Placement::offloaded) return done({.result = std::move(result), .error = {}});
  if (offload == nullptr) {
    Error none{ErrorKind::misuse, "the result is kept at " + result.location + ", and --offload is none"};
    return done({.result = std::move(result), .error = std::move(none)});
  }
  std::string location = result.location;
  auto kept = std::make_shared<std::pair<Result, Callback<void(FetchedResult)>>>(std::move(result), std::move(done));
  offload->get(std::move(location), [kept](OffloadAnswer answer) {
    FetchedResult whole{.result = std::move(kept->first), .error = std::move(answer.error)};
    if (!whole.error) whole.error = check_offloaded(whole.result, answer.text);
    if (!whole.error) whole.result.bytes = std::move(answer.text);
    kept->second(std::move(whole));
  });
}

std::vector<std::string> fetch_result(const StoreAccess& access, Record& record) {
  std::vector<std::string> problems;
  if (is_sealed(record)) problems.push_back(sealed_error(record).message);
  if (record.result.placement == Placement::offloaded && access.offload == nullptr) return problems;
  FetchedResult fetched = wait_for<FetchedResult>(
      [&](Callback<void(FetchedResult)> done) { fetch_result(access.offload, record.result, std::move(done)); });
  record.result.bytes = std::move(fetched.result.bytes);
  if (fetched.error) problems.push_back(std::move(fetched.error->message));
  return problems;
}

}  // namespace once::operators
