#include "operators/store_access.hpp"

#include <utility>

#include <once/engine/compression.hpp>

#include "platform/wait.hpp"

namespace once::operators {

std::vector<std::string> fetch_result(const StoreAccess& access, Record& record) {
  std::vector<std::string> problems;
  if (is_sealed(record)) problems.push_back(sealed_error(record).message);
  if (record.result.placement == Placement::offloaded && access.offload) {
    auto result = wait_for<OffloadAnswer>(
        [&](Callback<void(OffloadAnswer)> done) { access.offload->get(record.result.location, std::move(done)); });
    if (result.error) {
      problems.push_back(std::move(result.error->message));
    } else if (auto other = check_offloaded(record.result, result.text)) {
      problems.push_back(std::move(other->message));
    } else {
      record.result.bytes = std::move(result.text);
    }
  }
  if (record.result.placement == Placement::compressed) {
    Result whole = record.result;
    const auto error = expand(whole);
    if (error) problems.push_back(error->message);
    record.result.bytes = error ? std::string() : std::move(whole.bytes);
  }
  return problems;
}

}  // namespace once::operators
