// Much at once, for the sanitizers: with keys and without, duplicates, clients that leave, two loops, many connections.
#include <map>

#include "proxy_test.hpp"

namespace once::proxy {
namespace load_test {

TEST_F(ProxyTest, UnderLoadNoKeyRunsTwice) {
  constexpr int clients = 12;
  constexpr int rounds = 60;
  rules.policy->on_conflict = OnConflict::wait;
  rules.policy->wait = patience;
  std::map<std::string, int> effects;  // By key.
  start([&](Line& line) {
    while (auto request = line.read_request()) {
      int number = 0;
      {
        const std::lock_guard lock(mutex);
        number = ++effects[request->header("Idempotency-Key")];
      }
      if (!line.write(answer_text("201 Created", request->body + " " + std::to_string(number)))) return;
    }
  });

  std::atomic<int> wrong = 0;
  const auto expect = [&](Line& line, const std::string& request, const std::string& body) {
    line.write(request);
    const auto answer = line.read_message();
    if (!answer || answer->status() != 201U || (!body.empty() && answer->body != body)) ++wrong;
  };
  const auto client_life = [&](int number) {
    try {
      Line kept = client();
      for (int round = 0; round < rounds; ++round) {
        const std::string own = std::to_string(number) + "-" + std::to_string(round);
        expect(kept, post("own-" + own, own), own + " 1");
        expect(kept, post("own-" + own, own), own + " 1");
        const std::string shared = std::to_string(round);
        expect(kept, post("shared-" + shared, shared), shared + " 1");
        expect(kept, post("", own), "");
        expect(kept, "GET /books HTTP/1.1\r\nHost: shop\r\n\r\n", "");
        // Some leave: before their request is there, or before the answer is; and who asks again gets that answer.
        Line leaving = client();
        const std::string left = post("left-" + own, own);
        leaving.write(round % 3 == 0 ? left.substr(0, left.size() / 2) : left);
        if (round % 2 == 0) leaving.reset();
        leaving.close();
        expect(kept, left, own + " 1");
      }
    } catch (const std::exception&) {
      ++wrong;
    }
  };
  std::vector<std::thread> threads;
  for (int number = 0; number < clients; ++number) threads.emplace_back(client_life, number);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(proxy->stop(std::chrono::duration_cast<Millis>(patience)));

  const std::lock_guard lock(mutex);
  EXPECT_EQ(effects.size(), std::size_t{clients * rounds * 2 + rounds + 1});
  for (const auto& [key, count] : effects) {
    if (!key.empty()) {
      EXPECT_EQ(count, 1) << key;
    }
  }
}

}  // namespace load_test
}  // namespace once::proxy
