// Registers the tests for the traits.
#include <once/testing/conformance.hpp>

#include <gtest/gtest.h>

#include <utility>

#include "testing/conformance/subject.hpp"

namespace once::testing {

namespace {

using Body = std::function<void(Subject&)>;

class ConformanceTest final : public ::testing::Test {
 public:
  ConformanceTest(StoreTraits traits, HarnessFactory factory, Body body)
      : traits_(std::move(traits)), factory_(std::move(factory)), body_(std::move(body)) {}

  void TestBody() override {
    Subject subject(traits_, factory_());
    try {
      body_(subject);
    } catch (...) {
      subject.abandon();  // Such a broken store may hang in its destructor.
      throw;
    }
    subject.close();
  }

 private:
  const StoreTraits traits_;
  const HarnessFactory factory_;
  const Body body_;
};

bool is_word(const std::string& text) {
  return !text.empty() &&
         text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == std::string::npos;
}

}  // namespace

void StoreHarness::plant(std::size_t, const std::string&) {
  throw Broken("StoreTraits::foreign_records is not 0, but the harness has no plant()");
}

std::shared_ptr<void> StoreHarness::begin_outage(const std::string& name) {
  throw Broken("StoreTraits::outages names " + quote(name) + ", but the harness has no begin_outage()");
}

std::shared_ptr<const Companion> StoreHarness::companion(bool) {
  throw Broken("StoreTraits::companions is set, but the harness has no companion()");
}

std::size_t StoreHarness::companions_written() {
  throw Broken("StoreTraits::companions is set, but the harness has no companions_written()");
}

std::unique_ptr<OwnTransaction> StoreHarness::begin_transaction(Store&) {
  throw Broken("StoreTraits::hands_out is set, but the harness has no begin_transaction()");
}

std::size_t register_conformance(const std::string& name, const StoreTraits& traits, const HarnessFactory& factory,
                                 const char* file, int line) {
  if (!is_word(name)) throw Exception(ErrorKind::misuse, "name of a conformance suite: use letters, digits and '_'");
  std::size_t count = 0;
  const auto add = [&](const std::string& layer, const std::string& test, Body body) {
    ::testing::RegisterTest((name + "_" + layer).c_str(), test.c_str(), nullptr, nullptr, file, line,
                            [traits, factory, body = std::move(body)]() -> ::testing::Test* {
                              return new ConformanceTest(traits, factory, body);
                            });
    ++count;
  };
  const auto add_all = [&](const std::string& layer, std::span<const Test> tests) {
    for (const Test& test : tests) {
      if (test.needs == Test::Needs::shared && !traits.shared) continue;
      if (test.needs == Test::Needs::durable && !traits.durable) continue;
      if (test.needs == Test::Needs::companions && !traits.companions) continue;
      if (test.needs == Test::Needs::hands_out && !traits.hands_out) continue;
      add(layer, test.name, test.body);
    }
  };
  add_all("round_trip", round_trip_tests());
  add_all("laws", law_tests());
  add_all("laws", list_tests());
  add_all("laws", companion_law_tests());
  add_all("laws", hand_out_law_tests());
  add_all("model", model_tests());
  add_all("race", race_tests());
  add_all("race", companion_race_tests());
  add_all("race", hand_out_race_tests());
  add_all("faults", fault_tests());
  for (std::size_t i = 0; i < traits.foreign_records; ++i) {
    add("faults", "foreign_record_" + std::to_string(i), [i](Subject& subject) { foreign_record(subject, i); });
  }
  for (const std::string& name_of_outage : traits.outages) {
    if (!is_word(name_of_outage)) throw Exception(ErrorKind::misuse, "name of an outage: use letters, digits and '_'");
    add("faults", "outage_" + name_of_outage, [name_of_outage](Subject& subject) { outage(subject, name_of_outage); });
    if (!traits.companions) continue;
    add("faults", "outage_with_companion_" + name_of_outage,
        [name_of_outage](Subject& subject) { outage_with_companion(subject, name_of_outage); });
  }
  return count;
}

}  // namespace once::testing
