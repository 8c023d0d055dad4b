#include "operators/events.hpp"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <once/error.hpp>
#include <once/key.hpp>
#include <once/operate.hpp>

#include "operators/answers.hpp"
#include "operators/record_json.hpp"
#include "operators/requests.hpp"
#include "operators/words.hpp"
#include "platform/thread.hpp"
#include "text/hex.hpp"

namespace once::operators {

namespace {

using Json = nlohmann::ordered_json;
using Steady = std::chrono::steady_clock;
using Told = Callback<void(std::string)>;

constexpr std::string_view overview_topic = "overview";
constexpr std::string_view bulk_start = "bulk:";  // And the act's id.
constexpr Millis tick{1'000};                     // How late the end of a session, or a ping, may be noticed.
constexpr int pause_per_duration = 4;

bool is_bulk(std::string_view topic) { return topic.starts_with(bulk_start); }
bool is_record(std::string_view topic) { return topic != overview_topic && !is_bulk(topic); }

// What somebody watches: "overview", "bulk:ID", and stored keys in lower-case hexadecimal digits.
std::set<std::string, std::less<>> topics_of(std::string_view text, std::size_t most_keys) {
  Query query(text);
  const auto watch = query.take("watch");
  query.end();
  std::set<std::string, std::less<>> topics;
  std::size_t keys = 0;
  for (const std::string& word : split(watch.value_or(""), ',')) {
    if (word == overview_topic) {
      topics.insert(word);
      continue;
    }
    constexpr std::size_t id_digits = 32;
    if (is_bulk(word) && word.size() == bulk_start.size() + id_digits &&
        word.find_first_not_of("0123456789abcdef", bulk_start.size()) == std::string::npos) {
      if (topics.insert(word).second) ++keys;
      continue;
    }
    const auto key = text::from_hex(word);
    if (!key || key->empty() || key->size() > max_key_bytes) {
      throw wrong("watch has '" + escaped(word) +
                  "'; it takes overview, bulk:ID and stored_key_hex, with commas "
                  "between");
    }
    if (topics.insert(to_hex(*key)).second) ++keys;
  }
  if (topics.empty()) throw wrong("watch is missing: say what you watch, as in watch=overview");
  if (keys > most_keys) throw wrong("watch has more than " + std::to_string(most_keys) + " keys");
  return topics;
}

http::Answer stream_head() {
  return {
      .status = 200,
      .reason = {},
      // The last is for nginx, which keeps pieces back otherwise.
      .headers = {{"Content-Type", "text/event-stream"}, {"Cache-Control", "no-store"}, {"X-Accel-Buffering", "no"}},
      .body = {}};
}

http::Answer too_many() {
  http::Answer answer = operators_problem("busy", 503, "Too many streams of events are open",
                                          "Ask again and again instead, or end another stream.");
  answer.headers.push_back({"Retry-After", "30"});
  return answer;
}

}  // namespace

// A client with a stream.
struct Events::Viewer {
  std::string name;
  std::function<bool()> is_allowed;
  std::set<std::string, std::less<>> topics;
  bool resets = false;     // It missed something, and has to be told so.
  std::uint64_t told = 0;  // The version of the newest event that it was given.
  Told waiting;            // For the next events. Empty: it is being sent some.
  Steady::time_point given_at{};
  bool has_ended = false;
};

struct Events::Shared {
  Shared(std::shared_ptr<Store> the_store, OverviewSources the_sources, EventsOptions the_options, BulkData the_bulk,
         ServiceData the_service)
      : sources(std::move(the_sources)),
        bulk(std::move(the_bulk)),
        service(std::move(the_service)),
        options(std::move(the_options)),
        store(std::move(the_store)) {
    std::array<std::uint8_t, 4> bytes{};
    system_random()->fill(bytes);
    epoch = to_hex({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }

  struct Topic {
    std::size_t viewers = 0;
    std::uint64_t version = 0;  // Of the event that is present. 0: none yet.
    std::string data;
  };
  struct Gift {
    Told done;
    std::string bytes;
  };
  using Gifts = std::vector<Gift>;

  const OverviewSources sources;
  const BulkData bulk;
  const ServiceData service;
  const EventsOptions options;
  std::string epoch;             // Of the events' ids: another process has another.
  std::shared_ptr<Store> store;  // Null after the end.

  mutable std::mutex mutex;  // Guards the following members.
  std::condition_variable news;
  bool ending = false;
  bool resting = false;
  bool has_newcomer = false;
  std::vector<std::shared_ptr<Viewer>> viewers;
  std::map<std::string, Topic, std::less<>> topics;
  std::uint64_t version = 0;

  std::optional<std::string> asked;  // The key of a request that was not dealt with.
  std::optional<Answer> answer;      // Its answer.
  Steady::time_point asked_at;
  bool is_late = false;
  std::deque<std::string> round;  // Topics that this round has not asked for yet.
  Steady::time_point round_began;
  Steady::time_point next_round;
  Steady::time_point next_overview;
  Steady::time_point next_bulk;

  void publish(Topic& topic, std::string data) {
    if (topic.version != 0 && topic.data == data) return;
    topic.data = std::move(data);
    topic.version = ++version;
  }

  [[nodiscard]] std::string record_data(const std::string& key, const Answer& got) const {
    Json json{{"key", key},         {"tag", nullptr},   {"standing", nullptr},
              {"overdue", nullptr}, {"error", nullptr}, {"service", nullptr}};
    if (got.status == AnswerStatus::failed) {
      json["error"] = got.error.message;
    } else if (got.record) {
      const Time now = operate::now(*store, *options.clock);
      json["tag"] = etag(*got.record);
      json["standing"] = operate::to_string(operate::standing(*got.record, now));
      json["overdue"] = is_overdue(*got.record, now);
      if (service) json["service"] = service(*got.record);
    }
    return json_line(json);
  }

  void append(std::string& out, std::string_view name, std::uint64_t id, std::string_view data) const {
    out += "id: " + epoch + "-" + std::to_string(id) + "\nevent: ";
    out += name;
    out += "\ndata: ";
    out += data;
    out += "\n\n";
  }

  // What is new for the viewer, oldest first.
  [[nodiscard]] std::string take(Viewer& viewer) const {
    std::vector<std::pair<std::uint64_t, std::string_view>> fresh;
    for (const std::string& name : viewer.topics) {
      const auto found = topics.find(name);
      if (found != topics.end() && found->second.version > viewer.told) {
        fresh.emplace_back(found->second.version, name);
      }
    }
    std::string out;
    if (viewer.resets) append(out, "reset", viewer.told, "{}");
    viewer.resets = false;
    std::ranges::sort(fresh);
    for (const auto& [id, name] : fresh) {
      append(out,
             name == overview_topic ? name
             : is_bulk(name)        ? "bulk"
                                    : "changed",
             id, topics.find(name)->second.data);
      viewer.told = id;
    }
    return out;
  }

  // Gives the viewer, which waits, what there is for it. `pings`: at least a line that says that this lives.
  void serve(Viewer& viewer, Steady::time_point now, bool pings, Gifts& gifts) const {
    std::string out;
    if (!viewer.has_ended && !ending) viewer.has_ended = !viewer.is_allowed();
    if (!viewer.has_ended && !ending) {
      out = take(viewer);
      if (out.empty() && !pings && now - viewer.given_at < options.ping_pause) return;
      if (out.empty()) out = ": ping\n\n";
    }
    viewer.given_at = now;
    gifts.push_back({std::exchange(viewer.waiting, nullptr), std::move(out)});
  }
  [[nodiscard]] Gifts serve_all(Steady::time_point now) const {
    Gifts gifts;
    for (const auto& viewer : viewers) {
      if (viewer->waiting) serve(*viewer, now, false, gifts);
    }
    return gifts;
  }
  static void deliver(Gifts gifts) {
    for (Gift& gift : gifts) gift.done(std::move(gift.bytes));
  }

  void add(const std::shared_ptr<Viewer>& viewer) {
    for (const std::string& name : viewer->topics) {
      Topic& topic = topics[name];
      topic.viewers += 1;
      if (topic.version == 0) has_newcomer = true;
    }
    if (viewers.empty()) has_newcomer = true;
    viewers.push_back(viewer);
    news.notify_all();
  }
  void remove(const std::shared_ptr<Viewer>& viewer) {
    std::erase(viewers, viewer);
    for (const std::string& name : viewer->topics) {
      const auto found = topics.find(name);
      if (--found->second.viewers == 0) topics.erase(found);
    }
  }

  void forget_answer() {
    asked.reset();
    answer.reset();
    is_late = false;
  }

  void take_answer(Steady::time_point now) {
    const auto topic = topics.find(*asked);
    if (topic != topics.end()) publish(topic->second, record_data(*asked, *answer));
    forget_answer();
    if (round.empty())
      next_round = now + std::max<Steady::duration>(options.pause, pause_per_duration * (now - round_began));
  }

  // Those who watch what is not known yet are told as well when they come.
  void tell_late() {
    const bool told = std::exchange(is_late, true);
    const Error silent{ErrorKind::unavailable, store->name() + " has not answered"};
    for (auto& [name, topic] : topics) {
      if (is_record(name) && (!told || topic.version == 0))
        publish(topic, record_data(name, Answer{.status = AnswerStatus::failed, .error = silent}));
    }
  }

  void look_at_overview(Steady::time_point now) {
    const auto topic = topics.find(overview_topic);
    if (topic == topics.end() || (topic->second.version != 0 && now < next_overview)) return;
    publish(topic->second, json_line(overview_json(store->name(), sources)));
    next_overview = now + options.overview_pause;
  }

  // Empty: nobody watches one.
  [[nodiscard]] std::optional<Steady::time_point> look_at_bulk(Steady::time_point now) {
    const auto is_watched = [](const auto& one) { return is_bulk(one.first); };
    if (std::ranges::none_of(topics, is_watched)) return std::nullopt;
    const bool is_due = now >= next_bulk;
    for (auto& [name, topic] : topics) {
      if (!is_bulk(name) || (!is_due && topic.version != 0)) continue;
      publish(topic, bulk ? bulk(std::string_view(name).substr(bulk_start.size())) : "{}");
    }
    if (is_due) next_bulk = now + options.bulk_pause;
    return next_bulk;
  }

  // The record to ask for now, if any: one that nobody has asked for yet, or the next of the round.
  [[nodiscard]] std::optional<std::string> next_key(Steady::time_point now) {
    const auto is_new = [](const auto& one) { return is_record(one.first) && one.second.version == 0; };
    const auto fresh = std::ranges::find_if(topics, is_new);
    if (fresh != topics.end()) {
      if (round.empty()) round_began = now;
      return fresh->first;
    }
    if (round.empty() && now >= next_round) {
      round_began = now;
      for (const auto& [name, topic] : topics) {
        if (is_record(name)) round.push_back(name);
      }
    }
    while (!round.empty()) {
      std::string name = std::move(round.front());
      round.pop_front();
      if (topics.contains(name)) return name;
    }
    if (now >= next_round) next_round = now + options.pause;  // There is nothing to ask for.
    return std::nullopt;
  }

  static void ask(const std::shared_ptr<Shared>& shared, std::unique_lock<std::mutex>& lock, const std::string& key) {
    shared->asked = key;
    shared->asked_at = Steady::now();
    const std::shared_ptr<Store> store = shared->store;
    lock.unlock();
    store->get(*text::from_hex(key), [shared](Answer got) {
      const std::lock_guard guard(shared->mutex);
      shared->answer = std::move(got);
      shared->news.notify_all();
    });
    lock.lock();
  }

  static void work(const std::shared_ptr<Shared>& shared) {
    Shared& all = *shared;
    std::unique_lock lock(all.mutex);
    while (!all.ending) {
      if (all.viewers.empty()) {
        all.resting = true;
        all.news.wait(lock, [&] { return all.ending || !all.viewers.empty() || all.answer; });
        all.resting = false;
        if (all.viewers.empty()) all.forget_answer();  // It would be old when somebody comes.
        continue;
      }
      const auto now = Steady::now();
      all.has_newcomer = false;
      if (all.answer) all.take_answer(now);
      if (all.asked && now - all.asked_at >= all.options.patience) all.tell_late();
      all.look_at_overview(now);
      const auto bulk_at = all.look_at_bulk(now);
      Gifts gifts = all.serve_all(now);
      if (!gifts.empty()) {
        lock.unlock();
        deliver(std::move(gifts));
        lock.lock();
        continue;
      }
      if (!all.asked) {
        if (const auto key = all.next_key(now)) {
          ask(shared, lock, *key);
          continue;
        }
      }
      auto until = now + std::min<Steady::duration>(tick, all.options.ping_pause);
      if (!all.asked) until = std::min(until, std::max(all.next_round, now + Millis{1}));
      if (bulk_at) until = std::min(until, *bulk_at);
      all.news.wait_until(lock, until, [&] { return all.ending || all.answer || all.has_newcomer; });
    }
  }
};

class Events::Stream final : public proxy::AnswerStream {
 public:
  Stream(std::shared_ptr<Shared> shared, std::shared_ptr<Viewer> viewer)
      : shared_(std::move(shared)), viewer_(std::move(viewer)) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() override {
    const std::lock_guard lock(shared_->mutex);
    shared_->remove(viewer_);
  }

  void next(Told done) override {
    Shared::Gifts gifts;
    {
      const std::lock_guard lock(shared_->mutex);
      const bool is_first = viewer_->given_at == Steady::time_point{};
      viewer_->waiting = std::move(done);
      shared_->serve(*viewer_, Steady::now(), is_first, gifts);
    }
    Shared::deliver(std::move(gifts));
  }

  void stop() override {
    Shared::Gifts gifts;
    {
      const std::lock_guard lock(shared_->mutex);
      viewer_->has_ended = true;
      if (viewer_->waiting) shared_->serve(*viewer_, Steady::now(), false, gifts);
    }
    Shared::deliver(std::move(gifts));
  }

 private:
  const std::shared_ptr<Shared> shared_;
  const std::shared_ptr<Viewer> viewer_;
};

Events::Events(std::shared_ptr<Store> store, OverviewSources sources, EventsOptions options, BulkData bulk,
               ServiceData service)
    : shared_(std::make_shared<Shared>(std::move(store), std::move(sources), std::move(options), std::move(bulk),
                                       std::move(service))),
      worker_(start_thread<std::jthread>([shared = shared_] { Shared::work(shared); })) {}

Events::~Events() {
  stop();
  worker_.join();
  // The completion of a late request keeps the rest. If it kept the store, neither would ever end.
  shared_->store.reset();
}

void Events::stop() {
  Shared::Gifts gifts;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->ending = true;
    shared_->news.notify_all();
    gifts = shared_->serve_all(Steady::now());
  }
  Shared::deliver(std::move(gifts));
}

http::Answer Events::head(std::string_view query) const {
  static_cast<void>(topics_of(query, shared_->options.most_keys));
  return stream_head();
}

proxy::OperatorsAnswer Events::open(std::string_view query, bool resumes, std::function<bool()> is_allowed,
                                    std::string name) {
  auto viewer = std::make_shared<Viewer>();
  viewer->name = std::move(name);
  viewer->is_allowed = std::move(is_allowed);
  viewer->topics = topics_of(query, shared_->options.most_keys);
  viewer->resets = resumes;
  const std::lock_guard lock(shared_->mutex);
  if (shared_->ending) return stopping();
  const auto same = std::ranges::count(shared_->viewers, viewer->name, [](const auto& one) { return one->name; });
  if ((!viewer->name.empty() && static_cast<std::size_t>(same) >= shared_->options.most_of_one) ||
      shared_->viewers.size() >= shared_->options.most_viewers) {
    return too_many();
  }
  shared_->add(viewer);
  return {stream_head(), std::make_unique<Stream>(shared_, std::move(viewer))};
}

std::size_t Events::viewers() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->viewers.size();
}

bool Events::rests() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->resting;
}

}  // namespace once::operators
