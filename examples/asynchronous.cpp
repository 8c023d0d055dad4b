// Without a thread for each request: begin and finish by completion, as in a server with many running requests.
// Two hundred requests for ten jobs; each job is done once.
#include <atomic>
#include <cstdio>
#include <latch>
#include <memory>
#include <string>
#include <utility>

#include <once/engine/engine.hpp>
#include <once/stores/open.hpp>

namespace {

constexpr int requests = 200;
constexpr int jobs = 10;

struct Counts {
  std::atomic<int> done = 0;
  std::atomic<int> replayed = 0;
  std::atomic<int> wrong = 0;
  std::latch open{requests};
};

// [completions]
// Completions come from threads of the store, or before begin() returns; they must not block.
void handle(once::Engine& engine, Counts& counts, const std::string& job) {
  // Callers that come while it runs get its result. They wait by timer, and block no thread.
  engine.begin(engine.request(job, {}), [&counts, job](once::Begin begin) {
    if (begin.kind == once::Begin::Kind::replayed) {
      ++(begin.record->result.bytes == "result of " + job ? counts.replayed : counts.wrong);
      counts.open.count_down();
    } else if (begin.kind == once::Begin::Kind::claimed) {
      // The claim lives on in the completion of its finish.
      auto claim = std::make_shared<once::Claim>(std::move(begin.claim));
      claim->complete(once::Result::inlined("result of " + job), [&counts, claim](once::Finish finish) {
        ++(finish.kind == once::Finish::Kind::recorded ? counts.done : counts.wrong);
        counts.open.count_down();
      });
    } else {
      ++counts.wrong;
      counts.open.count_down();
    }
  });
}
// [/completions]

}  // namespace

int main() {
  Counts counts;
  once::Engine engine({.store = once::open_store("sqlite:jobs.db"), .scope = "jobs"});
  for (int i = 0; i < requests; ++i) handle(engine, counts, "job-" + std::to_string(i % jobs));
  counts.open.wait();
  std::printf("done %d, replayed %d, anything else %d\n", counts.done.load(), counts.replayed.load(),
              counts.wrong.load());
}
