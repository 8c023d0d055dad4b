#include "config.hpp"

#include <array>

namespace once::simulation {

using namespace std::chrono_literals;

namespace {

// What the real store does not do, or does in its own way.
void suit_dynamodb(Config& c, std::uint64_t seed, Bug bug) {
  testing::SeededRandom more(seed ^ 0x64796E61U);
  static constexpr std::array skews = {Millis{0}, Millis{200}, Millis{2'000}};
  if (c.tells != Tells::in_answers) {
    c.skew = more.pick(skews);
    c.jumps = more.chance(500);
  }
  c.tells = Tells::in_answers;
  c.told_error = Millis{500};
  c.hands_out = false;
  c.small = false;
  c.copies = false;
  switch (bug) {
    case Bug::dynamodb_sends_no_token:
      c.between_calls = Instant(200ms);
      c.declines = 600;
      c.retention = Millis{20};
      c.ghosts = true;
      [[fallthrough]];
    case Bug::dynamodb_transacts_unconditionally:
      c.companions = true;
      [[fallthrough]];
    case Bug::dynamodb_believes_lost_answers:
    case Bug::dynamodb_puts_unconditionally:
    case Bug::dynamodb_compares_no_revision:
      c.trouble = bug == Bug::dynamodb_sends_no_token ? 400 : 150;
      c.between_operators = Instant(2s);
      break;
    default:
      break;
  }
}

void suit_sqlite(Config& c, Bug bug) {
  c.tells = Tells::by_call;
  c.told_error = c.skew = Millis{0};
  c.hands_out = false;
  c.small = false;
  c.copies = false;
  c.forbids = false;
  if (bug == Bug::none) return;
  c.trouble = 150;
  c.between_calls = Instant(10ms);
  c.between_crashes = Instant(1s);
  c.between_operators = Instant(2s);
}

}  // namespace

Config Config::draw(World& world, std::uint64_t seed, Bug bug, Which store) {
  Config c;
  const auto pick = [&](auto... values) {
    const std::array all{values...};
    return all.at(world.below(all.size()));
  };
  c.processes = 1 + world.below(4);
  c.keys = 1 + world.below(8);
  c.lease = pick(Millis{300}, Millis{1'000}, Millis{5'000}, Millis{20'000});
  c.retention = pick(Millis{500}, Millis{5'000}, Millis{60'000}, Millis{3'600'000});
  c.latency = pick(Instant{100us}, Instant{2ms}, Instant{30ms});
  c.between_calls = Instant(c.lease) / static_cast<std::int64_t>(pick(2, 10, 50));
  c.tells = pick(Tells::by_call, Tells::in_answers, Tells::in_answers, Tells::never);
  if (c.tells == Tells::in_answers) {
    c.told_error = pick(Millis{2}, Millis{40}, Millis{600});
    c.skew = pick(Millis{0}, Millis{200}, Millis{2'000});
    c.jumps = world.chance(500);
  } else if (c.tells == Tells::never) {
    c.skew = Millis{250};
  } else {
    c.jumps = world.chance(500);
  }
  c.cached = world.chance(300);
  c.offloads = world.chance(400);
  c.compresses = c.keys % 3 == 0;  // No draw of its own: the other worlds stay as they were.
  c.retries_failures = world.chance(300);
  c.trouble = pick(0U, 20U, 150U, 400U);
  c.ghosts = world.chance(300);
  c.small = world.chance(200);
  c.companions = world.chance(300);
  c.differing = world.chance(200);
  if (c.ghosts) c.retention = pick(Millis{20}, c.retention);
  const auto often = [&](int spans) { return world.chance(500) ? Instant(c.lease) * spans : Instant{0}; };
  c.between_crashes = often(10);
  c.between_pauses = often(6);
  c.between_outages = often(15);
  c.between_operators = often(4);
  // Drawn apart: the other worlds stay as they were.
  testing::SeededRandom more(seed ^ 0x68616E64U);
  c.hands_out = more.chance(400);
  c.forbids = more.chance(200);
  c.misuses = more.chance(200);
  c.tokens = more.chance(500);
  if (more.chance(300)) c.declines = 600;
  c.storms = more.chance(200);
  if (c.storms) {
    c.trouble = 400;
    c.declines = 600;
    c.companions = c.companions || more.chance(800);
    c.forbids = c.forbids || more.chance(300);
    c.misuses = c.misuses || more.chance(500);
    c.between_crashes = c.between_pauses = c.between_outages = Instant(c.lease) * 3;
    c.between_operators = Instant(c.lease) / 8;
    if (more.chance(300)) {
      c.ghosts = true;
      c.retention = Millis{20};
    }
  }
  // Of what is between a caller and the server only requests can be cut in two: no transactions.
  testing::SeededRandom copying(seed ^ 0x636F7079U);
  c.copies = copying.chance(600) && !c.hands_out && !c.companions;
  testing::SeededRandom sleeping(seed ^ 0x736C6565U);
  c.sleeps = sleeping.chance(250);
  if (c.sleeps) c.between_pauses = Instant(c.lease) * 2;
  testing::SeededRandom attaching(seed ^ 0x61747461U);
  c.attaches = attaching.chance(400) && !c.copies;
  if (bug != Bug::none) {  // A world in which it can show.
    c.processes = 3;
    c.keys = 3;
    c.lease = Millis{1'000};
    c.between_calls = Instant(20ms);
    c.between_crashes = Instant(5s);
    c.between_pauses = Instant(3s);
    c.cached = false;
  }
  if (bug == Bug::engine_repeats_revisions) {
    c.keys = 1;
    c.trouble = 400;
    c.ghosts = true;
    c.retention = Millis{20};
    c.between_calls = Instant(200ms);
  }
  if (bug != Bug::none) c.copies = false;
  if (bug == Bug::engine_adopts_copies || bug == Bug::copy_repeats_draws) {
    c.copies = true;
    c.hands_out = c.companions = false;
    c.lease = Millis{5'000};
  }
  if (bug != Bug::none) c.attaches = bug == Bug::engine_attaches_anew;
  c.sleeps = c.sleeps || (bug >= Bug::engine_looks_before_sleep && bug <= Bug::engine_believes_renewals);
  if (bug == Bug::store_commits_apart) c.companions = true;
  if (bug == Bug::offload_loses_results) c.offloads = true;
  switch (bug) {
    case Bug::store_commits_displaced:
    case Bug::store_commits_rows_apart:
    case Bug::store_forgets_transactions:
    case Bug::store_finishes_released:
    case Bug::store_writes_back_record:
    case Bug::engine_declines_in_doubt:
      c.hands_out = true;
      c.trouble = 150;
      c.between_operators = Instant(2s);
      break;
    case Bug::store_tells_wrong_time:
      c.tells = Tells::in_answers;
      c.told_error = Millis{2};
      c.skew = Millis{0};
      break;
    case Bug::engine_ignores_refusals:  // Before the holder's lease is over, only an operator takes its claim away.
      c.between_operators = Instant(200ms);
      break;
    case Bug::engine_forgets_loss:
      c.tells = Tells::by_call;
      c.skew = Millis{0};
      c.jumps = false;
      c.trouble = 150;
      break;
    case Bug::engine_serves_expired:
      c.retention = Millis{500};
      break;
    default:
      break;
  }
  if (bug == Bug::engine_replays_stale) c.retention = Millis{5'000};
  if (bug == Bug::clock_far_off) {
    c.tells = Tells::never;
    c.skew = Millis{100};
    c.jumps = false;
  }
  if (store == Which::dynamodb) suit_dynamodb(c, seed, bug);
  if (store == Which::sqlite) suit_sqlite(c, bug);
  return c;
}

}  // namespace once::simulation
