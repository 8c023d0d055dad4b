// How fast the SQLite store is, as a ratio to what the machine can do: bench/bench_sqlite --help.
//
// The floor is the same client threads and the same queue with the engine taken out: one writer thread that appends
// 400 bytes for each operation and calls fdatasync once for each group. A cycle is a claim (insert) and its completion
// (replace), each acknowledged durably, through the Store port and the blocking calls.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <semaphore>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <once/decide.hpp>
#include <once/platform/blocking.hpp>
#include <once/platform/system.hpp>
#include <once/seal.hpp>
#include <once/stores/sqlite.hpp>

#include "stores/sqlite/group_queue.hpp"

namespace {

using once::Answer;
using once::AnswerStatus;
using once::Record;
using once::RecordPtr;
using Seconds = std::chrono::duration<double>;

// --- The floor ---

class Floor final : public once::Store {
 public:
  explicit Floor(const std::string& path)
      : fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600)) {
    if (fd_ < 0) throw std::runtime_error("cannot open " + path);
    writer_ = std::thread([this] { run(); });
    pthread_setname_np(writer_.native_handle(), "once-floor");
  }
  ~Floor() override {
    stopping_ = true;
    queue_.nudge();
    writer_.join();
    ::close(fd_);
  }

  void insert(RecordPtr record, once::Done done) override { push(std::move(record), std::move(done)); }
  void replace(RecordPtr record, once::Seen, once::Done done) override { push(std::move(record), std::move(done)); }
  void remove(std::string, once::Seen, once::Done done) override { done(Answer::ok()); }
  void get(std::string, once::Done done) override { done(Answer::ok()); }
  void list(once::ListQuery, once::Callback<void(once::ListPage)> done) override { done({}); }
  void sweep(once::Time, std::size_t, once::Callback<void(once::SweepAnswer)> done) override { done({}); }
  [[nodiscard]] once::Capabilities capabilities() const noexcept override { return {.max_record_bytes = 400}; }
  [[nodiscard]] std::string name() const override { return "floor:"; }

 private:
  struct Operation {
    Operation* next = nullptr;
    RecordPtr record;
    once::Done done;
  };

  void push(RecordPtr record, once::Done done) {
    auto operation = std::make_unique<Operation>();
    operation->record = std::move(record);
    operation->done = std::move(done);
    queue_.push(operation.release());
  }

  void run() {
    std::vector<std::unique_ptr<Operation>> group;
    std::string bytes;
    for (;;) {
      queue_.wait();
      for (Operation* at = queue_.take(); at != nullptr;) {
        Operation* const next = at->next;
        group.emplace_back(at);
        at = next;
      }
      if (group.empty()) {
        if (stopping_) return;
        continue;
      }
      bytes.assign(400 * group.size(), 'x');
      if (::write(fd_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()) || fdatasync(fd_) != 0) {
        std::perror("floor");
        std::abort();
      }
      for (const auto& operation : group) operation->done(Answer::ok());
      group.clear();
    }
  }

  int fd_;
  once::stores::sqlite::GroupQueue<Operation> queue_;
  std::atomic<bool> stopping_{false};
  std::thread writer_;
};

// --- The load ---

once::Attempt attempt() {
  std::array<std::uint8_t, 16> random{};
  once::system_random()->fill(random);
  once::Attempt made;
  made.key = "bench#" + once::to_hex({reinterpret_cast<const char*>(random.data()), random.size()});
  once::system_random()->fill(made.owner.bytes);
  once::Sha256 digest{};
  std::copy(random.begin(), random.end(), digest.begin());
  made.fingerprint = once::Fingerprint(digest);
  made.holder = "host.example:4711 bench";
  return made;
}

const std::string result(100, 'r');
const once::EffectivePolicy policy;

[[noreturn]] void give_up(const Answer& answer) {
  std::fprintf(stderr, "bench: a write was not done: %s\n", answer.error.message.c_str());
  std::exit(1);
}

double cpu_seconds() {
  timespec spec{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spec);
  return double(spec.tv_sec) + 1e-9 * double(spec.tv_nsec);
}

// Processor time of the store's writer thread, which a second core cannot take over (proc(5), schedstat).
double writer_seconds() {
  double sum = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    double ns = 0;
    if (name == "once-sqlite" || name == "once-floor") std::ifstream(task.path() / "schedstat") >> ns;
    sum += 1e-9 * ns;
  }
  return sum;
}

// The bytes that this process has written (proc(5), /proc/pid/io).
double written_bytes() {
  std::ifstream file("/proc/self/io");
  for (std::string name; file >> name;) {
    double value = 0;
    file >> value;
    if (name == "wchar:") return value;
  }
  return 0;
}

struct Load {
  double cycles_per_second = 0;
  double bytes = 0;      // Written, a cycle.
  double cpu_us = 0;     // A cycle, all threads.
  double writer_us = 0;  // A cycle, the store's writer.
  double p50_ms = 0;
  double p99_ms = 0;
};

// `made`, if not null, counts the cycles.
Load cycles(once::Store& store, unsigned threads, Seconds how_long, std::atomic<std::uint64_t>* made = nullptr) {
  std::atomic<bool> stop{false};
  std::vector<std::vector<float>> times(threads);
  std::vector<std::thread> clients;
  const auto begin = std::chrono::steady_clock::now();
  const double cpu = cpu_seconds();
  const double writer = writer_seconds();
  const double written = written_bytes();
  for (unsigned i = 0; i < threads; ++i) {
    clients.emplace_back([&, i] {
      while (!stop.load(std::memory_order_relaxed)) {
        const auto start = std::chrono::steady_clock::now();
        const once::Time now = once::system_clock()->now();
        Record record = once::claimed(attempt(), policy, once::Stamp(now, 0), nullptr, once::Verdict::execute);
        const once::Seen seen{record.owner, record.revision, 0};
        const Answer claim = once::blocking::insert(store, record);
        if (claim.status != AnswerStatus::done) give_up(claim);
        once::complete(record, once::Result::inlined(result), policy, once::Stamp(now, 0));
        const Answer finish =
            once::blocking::replace(store, std::move(record), {seen.owner, seen.revision, claim.place});
        if (finish.status != AnswerStatus::done) give_up(finish);
        times[i].push_back(std::chrono::duration<float>(std::chrono::steady_clock::now() - start).count());
        if (made != nullptr) made->fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  std::this_thread::sleep_for(how_long);
  stop = true;
  for (std::thread& client : clients) client.join();
  const Seconds took = std::chrono::steady_clock::now() - begin;
  const double used = cpu_seconds() - cpu;
  const double writing = writer_seconds() - writer;
  const double bytes = written_bytes() - written;
  std::vector<float> all;
  for (const auto& some : times) all.insert(all.end(), some.begin(), some.end());
  std::sort(all.begin(), all.end());
  if (all.empty()) return {};
  const auto at = [&](double share) { return 1e3 * all[static_cast<std::size_t>(share * double(all.size() - 1))]; };
  return {double(all.size()) / took.count(),
          bytes / double(all.size()),
          1e6 * used / double(all.size()),
          1e6 * writing / double(all.size()),
          at(0.5),
          at(0.99)};
}

// Adds finished records with random keys, about a thousand at once, as if it were so much earlier.
void fill(once::Store& store, std::uint64_t count, once::Millis earlier = {}) {
  std::counting_semaphore<4096> room(4096);
  for (std::uint64_t i = 0; i < count; ++i) {
    const once::Time now = once::system_clock()->now() - earlier;
    Record record = once::claimed(attempt(), policy, once::Stamp(now, 0), nullptr, once::Verdict::execute);
    once::complete(record, once::Result::inlined(result), policy, once::Stamp(now, 0));
    room.acquire();
    store.insert(once::share(std::move(record)), [&room](const Answer& answer) {
      if (answer.status != AnswerStatus::done) give_up(answer);
      room.release();
    });
  }
  for (int i = 0; i < 4096; ++i) room.acquire();
}

double reads_per_second(once::Store& store, const std::vector<std::string>& keys, Seconds how_long) {
  std::uint64_t count = 0;
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < how_long) {
    for (int i = 0; i < 100; ++i, ++count) {
      if (!once::blocking::get(store, keys[(count * 7919) % keys.size()]).record) std::abort();
    }
  }
  return double(count) / Seconds(std::chrono::steady_clock::now() - begin).count();
}

long resident_mib() {
  std::ifstream file("/proc/self/statm");
  long pages = 0;
  long resident = 0;
  file >> pages >> resident;
  return resident * (sysconf(_SC_PAGESIZE) / 1024) / 1024;
}

// --- The program ---

struct Options {
  std::string directory = ".";
  double seconds = 3;
  unsigned rounds = 3;
  bool json = false;
  bool ten_million = false;
  bool quick = false;
  std::uint32_t checkpoint_pages = once::stores::SqliteOptions{}.checkpoint_pages;
  std::string only;
  std::string worker;  // A store's file that two processes use; this is one of them.
  unsigned threads = 64;
};

void help() {
  std::puts(
      "bench_sqlite [--dir DIRECTORY] [--seconds N] [--rounds N] [--quick] [--10m] [--only NAME] [--json]\n"
      "  --dir      where the files go; a disk, not tmpfs. Default: the working directory\n"
      "  --seconds  of each measurement. Default 3\n"
      "  --rounds   the floor and the store take turns this often; the median counts. Default 3\n"
      "  --quick    one round of one second, and no million records\n"
      "  --10m      10 million records as well: some minutes and 5 GB\n"
      "  --only     empty, one, sealed, two, sweep or million\n"
      "  --json     one JSON object instead of the table");
}

Options parse(int argc, char** argv) {
  Options options;
  const auto number = [](const char* text) {
    char* end = nullptr;
    const double value = std::strtod(text, &end);
    if (*end != '\0' || value <= 0) throw std::runtime_error("not a number above 0: " + std::string(text));
    return value;
  };
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    const auto value = [&]() -> const char* {
      if (++i == argc) throw std::runtime_error(std::string(name) + " needs a value");
      return argv[i];
    };
    if (name == "--dir") {
      options.directory = value();
    } else if (name == "--seconds") {
      options.seconds = number(value());
    } else if (name == "--rounds") {
      options.rounds = static_cast<unsigned>(number(value()));
    } else if (name == "--threads") {
      options.threads = static_cast<unsigned>(number(value()));
    } else if (name == "--checkpoint-pages") {
      options.checkpoint_pages = static_cast<std::uint32_t>(number(value()));
    } else if (name == "--only") {
      options.only = value();
    } else if (name == "--worker") {
      options.worker = value();
    } else if (name == "--quick") {
      options.quick = true;
      options.seconds = 1;
      options.rounds = 1;
    } else if (name == "--10m") {
      options.ten_million = true;
    } else if (name == "--json") {
      options.json = true;
    } else if (name == "--help") {
      help();
      std::exit(0);
    } else {
      throw std::runtime_error("unknown option " + std::string(name) + "; see --help");
    }
  }
  return options;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Line {
  std::string name;
  double floor = 0;
  double store = 0;
  double ratio = 0;
  double lowest = 0;  // Of the rounds.
  double highest = 0;
  double floor_p99_ms = 0;
  double store_p99_ms = 0;
  double floor_cpu_us = 0;
  double floor_writer_us = 0;
  double store_cpu_us = 0;
  double store_writer_us = 0;
  double store_bytes = 0;
  double target = 0;  // 0: none.
};

struct Fact {
  std::string name;  // Unit included.
  double value = 0;
};

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options), directory_(options.directory + "/bench-sqlite.tmp") {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }
  ~Bench() { std::filesystem::remove_all(directory_); }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  void run() {
    if (wanted("one")) measure("1 thread, empty", 1, *open("one.db"), 0.80);
    if (wanted("empty")) {
      const auto store = open("empty.db");
      fill(*store, 10'000);
      measure("64 threads, empty", 64, *store, 0.40);
    }
    if (wanted("sealed")) sealed_beside_clear();
    if (wanted("two")) two_processes();
    if (wanted("sweep")) sweeps();
    if (wanted("million") && !options_.quick) {
      grow(1'000'000, "64 threads, 1 M random keys", 0.25);
      if (options_.ten_million) grow(10'000'000, "64 threads, 10 M random keys", 0);
    }
    if (options_.json) {
      print_json();
    } else {
      print();
    }
  }

 private:
  [[nodiscard]] bool wanted(const char* name) const { return options_.only.empty() || options_.only == name; }

  [[nodiscard]] std::unique_ptr<once::Store> open(const std::string& name) const {
    return once::stores::make_sqlite_store(
        {.path = directory_ + "/" + name, .checkpoint_pages = options_.checkpoint_pages});
  }

  // A sealed store and one in the clear in turns, so that other load affects both.
  void sealed_beside_clear() {
    once::SealKey key{.id = "bench", .bytes = {}};
    once::system_random()->fill(key.bytes);
    const auto clear = open("clear.db");
    const auto sealed = once::seal(open("sealed.db"), {key});
    for (once::Store* const store : {clear.get(), sealed.get()}) {
      cycles(*store, 64, Seconds(options_.seconds / 2));  // Until the log is as long as it gets.
    }
    for (const unsigned threads : {1U, 64U}) {
      std::vector<double> speeds;
      std::vector<double> cpu;
      for (unsigned round = 0; round < options_.rounds; ++round) {
        const Load in_the_clear = cycles(*clear, threads, Seconds(options_.seconds));
        const Load when_sealed = cycles(*sealed, threads, Seconds(options_.seconds));
        speeds.push_back(when_sealed.cycles_per_second / in_the_clear.cycles_per_second);
        cpu.push_back(when_sealed.cpu_us / in_the_clear.cpu_us);
      }
      const std::string name = "sealed to clear, " + std::to_string(threads) + (threads == 1 ? " thread" : " threads");
      facts_.push_back({name + ": cycles/s", median(speeds)});
      facts_.push_back({name + ": CPU a cycle", median(cpu)});
    }
  }

  // What it costs to remove a record: alone, and while as many expire as are made.
  void sweeps() {
    const std::uint64_t records = options_.quick ? 20'000 : 1'000'000;
    const auto store = open("sweep.db");
    fill(*store, records, std::chrono::hours(240));
    const auto sweep = [&](std::size_t limit) {
      const once::SweepAnswer answer = once::blocking::sweep(*store, once::system_clock()->now(), limit);
      if (answer.error) throw std::runtime_error("a sweep failed: " + answer.error->message);
      return answer.removed;
    };
    const double writer = writer_seconds();
    const auto begin = std::chrono::steady_clock::now();
    const auto half = static_cast<double>(sweep(records / 2));
    facts_.push_back({"sweep: writer us a record", 1e6 * (writer_seconds() - writer) / half});
    facts_.push_back({"sweep: records/s", half / Seconds(std::chrono::steady_clock::now() - begin).count()});

    std::vector<double> ratios;
    std::vector<double> writer_us;
    double p99_ms = 0;
    for (unsigned round = 0; round < options_.rounds; ++round) {
      const Load without = cycles(*store, 64, Seconds(options_.seconds));
      std::atomic<std::uint64_t> made{0};
      std::atomic<bool> stop{false};
      std::uint64_t removed = 0;
      std::thread sweeper([&] {
        while (!stop || removed < made) {
          const std::uint64_t due = made - std::min<std::uint64_t>(removed, made);
          if (due < 1'000 && !stop) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
            continue;
          }
          const std::size_t now = sweep(due);
          if (now == 0) break;  // All have gone.
          removed += now;
        }
      });
      const Load with = cycles(*store, 64, Seconds(options_.seconds), &made);
      stop = true;
      sweeper.join();
      if (removed < made) throw std::runtime_error("too few records to remove: use a shorter --seconds");
      ratios.push_back(with.cycles_per_second / without.cycles_per_second);
      writer_us.push_back(with.writer_us - without.writer_us);
      p99_ms = std::max(p99_ms, with.p99_ms);
    }
    facts_.push_back({"steady state, 64 threads: cycles/s, to the rate without removal", median(ratios)});
    facts_.push_back({"steady state, 64 threads: writer us a cycle more than without", median(writer_us)});
    facts_.push_back({"steady state, 64 threads: p99 ms of a cycle", p99_ms});
  }

  // The floor and the store in turns, so that other load affects both.
  void measure(const std::string& name, unsigned threads, once::Store& store, double target) {
    Line line{.name = name, .target = target};
    std::vector<double> floors;
    std::vector<double> stores;
    std::vector<double> ratios;
    std::vector<double> floor_cpu;
    std::vector<double> floor_writer;
    std::vector<double> store_cpu;
    std::vector<double> store_writer;
    std::vector<double> store_bytes;
    cycles(store, threads, Seconds(options_.seconds / 2));  // Until the log is as long as it gets.
    for (unsigned round = 0; round < options_.rounds; ++round) {
      Load floor;
      {
        Floor engine(directory_ + "/floor");
        floor = cycles(engine, threads, Seconds(options_.seconds));
      }
      const Load load = cycles(store, threads, Seconds(options_.seconds));
      floors.push_back(floor.cycles_per_second);
      stores.push_back(load.cycles_per_second);
      ratios.push_back(load.cycles_per_second / floor.cycles_per_second);
      floor_cpu.push_back(floor.cpu_us);
      floor_writer.push_back(floor.writer_us);
      store_writer.push_back(load.writer_us);
      store_cpu.push_back(load.cpu_us);
      store_bytes.push_back(load.bytes);
      line.floor_p99_ms = std::max(line.floor_p99_ms, floor.p99_ms);
      line.store_p99_ms = std::max(line.store_p99_ms, load.p99_ms);
    }
    line.floor = median(floors);
    line.store = median(stores);
    line.ratio = median(ratios);
    line.lowest = *std::min_element(ratios.begin(), ratios.end());
    line.highest = *std::max_element(ratios.begin(), ratios.end());
    line.floor_cpu_us = median(floor_cpu);
    line.floor_writer_us = median(floor_writer);
    line.store_cpu_us = median(store_cpu);
    line.store_writer_us = median(store_writer);
    line.store_bytes = median(store_bytes);
    lines_.push_back(line);
  }

  void two_processes() {
    Line line{.name = "2 processes, 32 threads each", .target = 0.30};
    const std::string path = directory_ + "/two.db";
    open("two.db").reset();
    std::vector<double> floors;
    std::vector<double> stores;
    std::vector<double> ratios;
    std::vector<double> shares;
    for (unsigned round = 0; round < options_.rounds; ++round) {
      double floor = 0;
      {
        Floor engine(directory_ + "/floor");
        floor = cycles(engine, 64, Seconds(options_.seconds)).cycles_per_second;
      }
      std::array<FILE*, 2> pipes{};
      const std::string command = std::filesystem::read_symlink("/proc/self/exe").string() + " --worker '" + path +
                                  "' --threads 32 --seconds " + std::to_string(options_.seconds);
      for (FILE*& pipe : pipes) {
        pipe = popen(command.c_str(), "r");
        if (pipe == nullptr) throw std::runtime_error("cannot start " + command);
      }
      std::array<double, 2> rates{};
      for (std::size_t i = 0; i < 2; ++i) {
        double p99 = 0;
        if (std::fscanf(pipes.at(i), "%lf %lf", &rates.at(i), &p99) != 2 || pclose(pipes.at(i)) != 0) {
          throw std::runtime_error("a worker failed: " + command);
        }
        line.store_p99_ms = std::max(line.store_p99_ms, p99);
      }
      floors.push_back(floor);
      stores.push_back(rates[0] + rates[1]);
      ratios.push_back((rates[0] + rates[1]) / floor);
      shares.push_back(std::min(rates[0], rates[1]) / (rates[0] + rates[1]));
    }
    line.floor = median(floors);
    line.store = median(stores);
    line.ratio = median(ratios);
    line.lowest = *std::min_element(ratios.begin(), ratios.end());
    line.highest = *std::max_element(ratios.begin(), ratios.end());
    lines_.push_back(line);
    facts_.push_back({"2 processes: share of the slower one", median(shares)});
  }

  void grow(std::uint64_t records, const std::string& name, double target) {
    const std::string path = directory_ + "/grown.db";
    std::vector<std::string> keys;
    {
      const auto store = open("grown.db");
      const std::uint64_t more = records - grown_;
      const auto begin = std::chrono::steady_clock::now();
      fill(*store, more);
      facts_.push_back(
          {name + ": filling, records/s", double(more) / Seconds(std::chrono::steady_clock::now() - begin).count()});
      grown_ = records;
    }
    const auto size = std::filesystem::file_size(path);
    facts_.push_back({name + ": bytes a record", double(size) / double(records)});
    const auto store = open("grown.db");
    once::ListQuery query{.limit = 10'000};
    for (const Record& record : once::blocking::list(*store, query).records) keys.push_back(record.key);
    const auto begin = std::chrono::steady_clock::now();
    query.state = once::State::in_progress;
    once::blocking::list(*store, query);
    facts_.push_back(
        {name + ": list --state in_progress, ms", 1e3 * Seconds(std::chrono::steady_clock::now() - begin).count()});
    measure(name, 64, *store, target);
    facts_.push_back({name + ": reads/s of one thread", reads_per_second(*store, keys, Seconds(1))});
    facts_.push_back({name + ": resident memory of the process, MiB", double(resident_mib())});
  }

  void print() const {
    std::printf("%-28s %8s %8s %6s %15s %10s %10s %16s %16s %9s %7s\n", "durable cycles/s", "floor", "store", "ratio",
                "(rounds)", "floor p99", "store p99", "floor cpu (wr.)", "store cpu (wr.)", "written", "target");
    for (const Line& line : lines_) {
      std::printf("%-28s %8.0f %8.0f %6.2f   (%5.2f -%5.2f) %7.2f ms %7.2f ms", line.name.c_str(), line.floor,
                  line.store, line.ratio, line.lowest, line.highest, line.floor_p99_ms, line.store_p99_ms);
      std::printf("  %5.1f (%4.1f) us  %5.1f (%4.1f) us %7.0f B", line.floor_cpu_us, line.floor_writer_us,
                  line.store_cpu_us, line.store_writer_us, line.store_bytes);
      if (line.target > 0) std::printf(" %7.2f", line.target);
      std::printf("\n");
    }
    std::printf("cpu, written: for a cycle; (wr.): the writer's thread. 0: not measured.\n");
    for (const Fact& fact : facts_) std::printf("%-64s %10.2f\n", fact.name.c_str(), fact.value);
  }

  void print_json() const {
    std::printf("{\"bench\": \"sqlite\", \"lines\": [");
    const char* comma = "";
    for (const Line& line : lines_) {
      std::printf(
          "%s\n  {\"name\": \"%s\", \"floor_cycles_per_s\": %.0f, \"store_cycles_per_s\": %.0f, \"ratio\": %.3f, "
          "\"ratio_lowest\": %.3f, \"ratio_highest\": %.3f, \"floor_p99_ms\": %.3f, \"store_p99_ms\": %.3f, "
          "\"floor_cpu_us\": %.2f, \"store_cpu_us\": %.2f, "
          "\"floor_writer_us\": %.2f, \"store_writer_us\": %.2f, "
          "\"store_bytes_a_cycle\": %.0f, \"target\": %.2f}",
          comma, line.name.c_str(), line.floor, line.store, line.ratio, line.lowest, line.highest, line.floor_p99_ms,
          line.store_p99_ms, line.floor_cpu_us, line.store_cpu_us, line.floor_writer_us, line.store_writer_us,
          line.store_bytes, line.target);
      comma = ",";
    }
    std::printf("],\n \"facts\": {");
    comma = "";
    for (const Fact& fact : facts_) {
      std::printf("%s\n  \"%s\": %.3f", comma, fact.name.c_str(), fact.value);
      comma = ",";
    }
    std::printf("}}\n");
  }

  const Options options_;
  const std::string directory_;
  std::uint64_t grown_ = 0;
  std::vector<Line> lines_;
  std::vector<Fact> facts_;
};

int work(const Options& options) {
  const auto store = once::stores::make_sqlite_store({.path = options.worker});
  const Load load = cycles(*store, options.threads, Seconds(options.seconds));
  std::printf("%f %f\n", load.cycles_per_second, load.p99_ms);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = parse(argc, argv);
    if (!options.worker.empty()) return work(options);
    Bench(options).run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_sqlite: %s\n", error.what());
    return 1;
  }
  return 0;
}
