#include "observed_store.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <ctime>
#include <utility>

#include "engine/forwarding_store.hpp"

namespace once::proof {

using nlohmann::ordered_json;

Lines::Lines(const std::string& path) : file_(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644)) {
  if (file_ < 0) throw Exception(ErrorKind::misuse, "cannot write " + path);
}

Lines::~Lines() { ::close(file_); }

void Lines::add(const ordered_json& line) {
  // Keys and results of other programs may be any bytes; ours are ASCII.
  const std::string text = line.dump(-1, ' ', true, ordered_json::error_handler_t::replace) + '\n';
  if (::write(file_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) std::abort();
}

void Lines::sync() {
  if (::fsync(file_) != 0) std::abort();
}

std::int64_t monotonic_ns() {
  timespec at{};
  ::syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &at);
  return std::int64_t{at.tv_sec} * 1'000'000'000 + at.tv_nsec;
}

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

namespace {

// FNV-1a (http://www.isthe.com/chongo/tech/comp/fnv/), of each field with its length before it.
class Digest {
 public:
  Digest& operator<<(std::string_view bytes) {
    *this << bytes.size();
    for (const char c : bytes) mix(static_cast<std::uint8_t>(c));
    return *this;
  }
  Digest& operator<<(std::uint64_t number) {
    for (unsigned i = 0; i < 8; ++i) mix(static_cast<std::uint8_t>(number >> (8 * i)));
    return *this;
  }
  Digest& operator<<(Time time) { return *this << static_cast<std::uint64_t>(unix_ms(time)); }
  [[nodiscard]] std::uint64_t value() const { return value_; }

 private:
  void mix(std::uint8_t byte) { value_ = (value_ ^ byte) * 0x100000001b3U; }
  std::uint64_t value_ = 0xcbf29ce484222325U;
};

std::string digest_of(const Record& record) {
  Digest digest;
  digest << record.key << static_cast<std::uint64_t>(record.state) << record.owner.hex() << record.token
         << record.attempt << record.revision << record.lease_until << record.expires_at << record.created_at
         << record.finished_at << record.expected_until << static_cast<std::uint64_t>(record.on_lapse)
         << record.fingerprint.bytes() << record.holder << record.note << record.label << history_text(record.history)
         << record.input << record.input_bytes;
  for (const Step& step : record.steps) digest << step.name << step.result;
  digest << record.result.bytes << record.result.content_type << static_cast<std::uint64_t>(record.result.placement)
         << record.result.location << record.result.size
         << std::string_view(reinterpret_cast<const char*>(record.result.digest.data()), record.result.digest.size())
         << record.failure.code << record.failure.message;
  return std::to_string(digest.value());
}

ordered_json answer_line(std::uint64_t id, const Answer& answer) {
  ordered_json line{{"t", monotonic_ns()}, {"r", id}};
  line["a"] = answer.status == AnswerStatus::done      ? "done"
              : answer.status == AnswerStatus::refused ? "refused"
                                                       : to_string(answer.error.kind);
  if (answer.status == AnswerStatus::failed) {
    line["why"] = answer.error.message;
  } else {
    line["n"] = told(answer.record.get());
  }
  if (answer.time) {
    line["st"] = unix_ms(answer.time->now);
    line["se"] = answer.time->error.count();
  }
  return line;
}

class ObservedStore final : public testing::ForwardingStore {
 public:
  ObservedStore(std::shared_ptr<Store> inner, std::shared_ptr<Lines> lines)
      : ForwardingStore(std::move(inner)), lines_(std::move(lines)) {}

  void insert(RecordPtr record, Done done) override {
    const std::uint64_t id = call("insert", record->key, nullptr, record.get());
    inner_->insert(std::move(record), answering(id, std::move(done)));
  }
  void replace(RecordPtr record, Seen seen, Done done) override {
    const std::uint64_t id = call("replace", record->key, &seen, record.get());
    inner_->replace(std::move(record), seen, answering(id, std::move(done)));
  }
  void remove(std::string key, Seen seen, Done done) override {
    const std::uint64_t id = call("remove", key, &seen, nullptr);
    inner_->remove(std::move(key), seen, answering(id, std::move(done)));
  }
  void get(std::string key, Done done) override {
    const std::uint64_t id = call("get", key, nullptr, nullptr);
    inner_->get(std::move(key), answering(id, std::move(done)));
  }
  void sweep(Time now, std::size_t limit, Callback<void(SweepAnswer)> done) override {
    const std::uint64_t id = next_id();
    lines_->add({{"t", monotonic_ns()}, {"c", id}, {"op", "sweep"}, {"now", unix_ms(now)}});
    inner_->sweep(now, limit, [lines = lines_, id, done = std::move(done)](SweepAnswer answer) mutable {
      lines->add({{"t", monotonic_ns()},
                  {"r", id},
                  {"a", answer.error ? to_string(answer.error->kind) : "done"},
                  {"removed", answer.removed}});
      done(std::move(answer));
    });
  }

 private:
  std::uint64_t call(const char* operation, const std::string& key, const Seen* seen, const Record* next) {
    const std::uint64_t id = next_id();
    ordered_json line{{"t", monotonic_ns()}, {"c", id}, {"op", operation}, {"k", key}};
    if (seen != nullptr) line["s"] = {seen->owner.hex().substr(0, 16), seen->revision};
    if (next != nullptr) line["n"] = told(next);
    lines_->add(line);
    return id;
  }
  Done answering(std::uint64_t id, Done done) {
    return [lines = lines_, id, done = std::move(done)](Answer answer) mutable {
      lines->add(answer_line(id, answer));
      done(std::move(answer));
    };
  }

  const std::shared_ptr<Lines> lines_;
};

}  // namespace

ordered_json told(const Record* record) {
  if (record == nullptr) return nullptr;
  ordered_json line{{"o", record->owner.hex().substr(0, 16)},
                    {"v", record->revision},
                    {"s", to_string(record->state)},
                    {"tk", record->token},
                    {"at", record->attempt},
                    {"l", unix_ms(record->lease_until)},
                    {"x", record->expires_at == never ? 0 : unix_ms(record->expires_at)},
                    {"d", digest_of(*record)}};
  if (!record->fingerprint.empty()) line["f"] = record->fingerprint.hex().substr(0, 8);
  if (record->on_lapse == OnLapse::hold) line["h"] = 1;
  if (!record->result.bytes.empty()) line["r"] = record->result.bytes;
  if (!record->failure.code.empty()) line["fc"] = record->failure.code;
  for (const Step& step : record->steps) line["st"].push_back(step.name + "=" + step.result);
  return line;
}

std::shared_ptr<Store> observe(std::shared_ptr<Store> inner, std::shared_ptr<Lines> lines) {
  return std::make_shared<ObservedStore>(std::move(inner), std::move(lines));
}

}  // namespace once::proof
