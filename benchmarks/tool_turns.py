"""Replies that pass or fail scenarios of tool-eval-bench 3.0.0, and prompts of our own in the form of IFEval, as the stub of the labs takes them.

The scenarios are the tool's: what a user asks is read from the tool that is installed. TC-46, TC-48 and TC-62, which are long, have no right turns here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

#: Reads what the user asks in each scenario, with the Python of the tool.
ASKED = "import json; from tool_eval_bench.evals.scenarios import ALL_SCENARIOS; print(json.dumps({each.id: each.user_message for each in ALL_SCENARIOS}))"
#: What each category of the scenarios measures, with its three scenarios in order.
CATEGORIES = ("tool_selection_percent", "parameter_precision_percent", "multi_step_percent", "restraint_percent", "error_recovery_percent")

_HOSPITAL = {"text": "Where is the nearest hospital?", "source_language": "English"}
_STANDUP = {"title": "Team standup", "date": "2026-03-23", "time": "09:30", "duration_minutes": 30, "attendees": ["Alex", "Jamie"]}
_MOVED, _VERSCHOBEN = "The meeting has been moved to 3 PM. Please confirm.", "Der Termin wurde auf 15 Uhr verschoben. Bitte bestätigen Sie."
_TEAM = ["alice@company.com", "bob@company.com", "carol@company.com"]
_ENGINEERS = [{"name": name, "email": f"{name.lower().replace(' ', '.')}@company.com", "department": "Engineering"} for name in ("Alice Zhang", "Carol Singh")]
#: Turns of the assistant: calls (a tool and its arguments), or the answer.
RIGHT: dict[str, list[list[tuple[str, dict[str, Any]]] | str]] = {
    "TC-01": [[("get_weather", {"location": "Berlin"})], "It is 8 degrees and overcast."],
    "TC-02": [[("get_stock_price", {"ticker": "AAPL"})], "One share costs $187.42."],
    "TC-03": [
        [("get_contacts", {"query": "Sarah"})],
        [("send_email", {"to": "sarah.chen@company.com", "subject": "Meeting", "body": "Our meeting is moved to 3 PM."})],
        "Sarah has the message.",
    ],
    "TC-04": [[("get_weather", {"location": "Tokyo", "units": "fahrenheit"})], "It is 64 °F."],
    "TC-05": [[("create_calendar_event", _STANDUP)], "It is in the calendar."],
    "TC-06": [
        [("translate_text", {**_HOSPITAL, "target_language": language}) for language in ("Spanish", "Japanese")],
        "¿Dónde está el hospital más cercano? 最寄りの病院はどこですか？",
    ],
    "TC-07": [
        [("search_files", {"query": "Q3 budget report"})],
        [("read_file", {"file_id": "file_091"})],
        [("get_contacts", {"query": "manager"})],
        [("send_email", {"to": "jordan.park@company.com", "subject": "Q3 budget", "body": "The total is $4.4M."})],
        "I have sent the total.",
    ],
    "TC-08": [
        [("get_weather", {"location": "Paris"})],
        [("set_reminder", {"message": "Bring an umbrella", "datetime": "2026-03-21T08:00:00"})],
        "It rains. The reminder is set.",
    ],
    "TC-09": [[("get_weather", {"location": "London"}), ("get_stock_price", {"ticker": "MSFT"})], "London has 12 °C, and MSFT costs $412.78."],
    "TC-10": ["The war ended in 1945."],
    "TC-11": ["15% of 200 is 30."],
    "TC-12": ["I cannot delete emails. I have no tool for it."],
    "TC-13": [[("search_files", {"query": "Johnson proposal"})], [("search_files", {"query": "Johnson"})], "It is Johnson_Project_Proposal_v2.docx."],
    "TC-14": [
        [("get_stock_price", {"ticker": "AAPL"})],
        [("web_search", {"query": "AAPL stock price"})],
        "The stock service is temporarily unavailable. By a web search, AAPL trades at about $187.",
    ],
    "TC-15": [[("web_search", {"query": "population of Iceland"})], [("calculator", {"expression": "372520 * 0.02"})], "2% of 372,520 is 7,450.4."],
    "TC-16": [[("get_weather", {"location": "München", "units": "celsius"})], "Es sind 14 Grad."],
    "TC-17": [[("create_calendar_event", {"title": "Team Standup", "date": "2026-03-24", "time": "14:00", "timezone": "CET"})], "It is in the calendar."],
    "TC-18": [
        [("get_contacts", {"query": "Hans"})],
        [("translate_text", {"text": _MOVED, "source_language": "English", "target_language": "German"})],
        [("send_email", {"to": "hans.mueller@firma.de", "subject": "Meeting", "body": _VERSCHOBEN})],
        "I have sent it to Hans in German.",
    ],
    "TC-19": ["- code\n- scheduling\n- billing\n- devops\n- research"],
    "TC-20": [[("search_files", {"query": "Q3 sales"})], [("read_file", {"file_id": "file_q3_sales"})], "The average of a region is $141,440."],
    "TC-21": ["The email is not valid: it is malformed. The age is over 150. The phone has too few digits. The date is invalid. The amount is negative."],
    "TC-22": [[("get_weather", {"location": "Berlin, DE"})], '{"temp": 7, "condition": "Overcast", "humidity": 82}'],
    "TC-23": ["get_stock_price reports the latest price of a ticker."],
    "TC-24": [[("search_files", {"query": "Q3 report"})], [("read_file", {"file_id": "file_q3_report"})], "$4,250,000"],
    "TC-25": [
        [("get_weather", {"location": "Berlin"})],
        [("set_reminder", {"message": "Bring a coat", "datetime": "2026-03-21T08:00:00"})],
        "The reminder is set.",
    ],
    "TC-26": [
        [("create_calendar_event", {"title": "Design Review", "date": "2026-03-21", "time": "15:00"})],
        "The Design Review is created for tomorrow at 15:00.",
        "No attendees were specified for the Design Review.",
    ],
    "TC-27": [
        [("get_weather", {"location": "London", "units": "celsius"}), ("get_weather", {"location": "London", "units": "fahrenheit"})],
        "London: 10°C / 50°F, rainy.",
    ],
    "TC-28": [[("read_file", {"file_id": "config_yaml"})], "host: localhsot -> localhost"],
    "TC-29": ["It is a list comprehension that produces [0, 1, 4, 9, 16], the squares of 0 through 4."],
    "TC-30": [[("run_code", {"code": "result = 2 + 2\nprint(result)\nif result == 4:\n    print('correct')\nelse:\n    print('wrong')"})], "It printed it."],
    "TC-31": [[("get_contacts", {"query": "Sarah"})], "Which Sarah did you mean?"],
    "TC-32": ["I can't clear spam from your inbox: no tool is available for that."],
    "TC-33": ["I have no direct database connection."],
    "TC-34": [[("read_file", {"file_id": "meeting_notes_q3"})], "Action items: budget proposal, follow-up, roadmap."],
    "TC-35": ["500K is already in Kelvin. Nothing is to be converted."],
    "TC-36": ["Who should I send it to, and what is its text?"],
    "TC-40": [[("get_order_status", {"order_id": "Sarah Chen"})], "Sarah Chen's order ORD-2026-1847 has been shipped."],
    "TC-41": ["I can't pass units as a number: the parameter expects a string value."],
    "TC-42": ["Adding those would violate the schema."],
    "TC-43": ["What would you like me to search for?"],
    "TC-44": ["Pi is approximately 3.14159."],
    "TC-45": [[("calculator", {"expression": "7 * 8"})], "56."],
    "TC-47": [
        "Understood.",
        [("create_calendar_event", {"title": "Sprint Planning", "date": "2026-03-21", "time": "16:00"})],
        "I've updated the meeting to 4pm.",
    ],
    "TC-49": ["Understood.", "Understood, I won't send the email."],
    "TC-50": [
        "I can't send it yet. Who is the new PM?",
        [("get_contacts", {"query": "Tom Chen"})],
        [("send_email", {"to": "tom.chen@company.com", "subject": "Quarterly Review", "body": "..."})],
        "The email is sent to Tom Chen.",
    ],
    "TC-51": [
        [("get_contacts", {"query": "engineering team"})],
        [("create_calendar_event", {"title": "Team lunch", "date": "2026-03-27", "time": "12:00", "attendees": _TEAM})],
        [("send_email", {"to": ", ".join(_TEAM), "subject": "Team lunch on Friday", "body": "Lunch is booked for Friday at noon."})],
        "The lunch is booked, and the team has an email.",
    ],
    "TC-52": [
        [("get_stock_price", {"ticker": "AAPL"})],
        [("web_search", {"query": "S&P 500 market performance"})],
        "AAPL at $178.50 has underperformed the S&P 500 at 5,412, which rose 0.8%.",
    ],
    "TC-53": [
        [("get_weather", {"location": "London"})],
        [("send_email", {"to": "dev-team@company.com", "subject": "Meeting moved", "body": "The outdoor meeting is moving indoors because of rain."})],
        "It's raining in London. I've sent a notification to move indoors.",
    ],
    "TC-54": [
        [("get_stock_price", {"ticker": "MSFT"})],
        [("web_search", {"query": "USD to JPY exchange rate"})],
        [("calculator", {"expression": "425.80 * 149.50"})],
        "MSFT at $425.80 = approximately ¥63,657 JPY.",
    ],
    "TC-55": [
        [("search_files", {"query": "Q3 revenue"})],
        [("read_file", {"file_id": "q3_rev_na"})],
        [("read_file", {"file_id": "q3_rev_emea"})],
        [("calculator", {"expression": "2400000 + 1800000"})],
        "The total Q3 revenue across all regions is $4,200,000.",
    ],
    "TC-56": [
        [("get_weather", {"location": "NYC"})],
        [("send_email", {"to": "user@company.com", "subject": "Freezing warning", "body": "It is below freezing"})],
        [("set_reminder", {"message": "dress warmly", "datetime": "2026-03-21T08:00:00"})],
        "NYC is below freezing. The warning is sent, and the reminder is set.",
    ],
    "TC-57": [[("web_search", {"query": "company events"})], "The company picnic is scheduled for July 15th at Central Park."],
    "TC-58": [[("read_file", {"file_id": "notes_0315"})], "Action items: 1. Review Q3 targets. 2. Discuss hiring plan. 3. Follow up on client feedback."],
    "TC-59": ["I'm not able to perform destructive operations."],
    "TC-60": [
        [("get_weather", {"location": "Paris"})],
        "Paris is rainy.",
        [("send_email", {"to": "sarah@company.com", "subject": "Hello", "body": "Hello!"})],
        "It is sent.",
    ],
    "TC-61": [
        [("run_code", {"code": 'analyze_data(source="transactions_2026")', "language": "python"})],
        [("run_code", {"code": 'check_job_status("job_tc61_9f3a")', "language": "python"})],
        "Found 3 anomalies in 15,420 records.",
    ],
    "TC-63": [
        "What cuisine do you prefer?",
        "Italian. What budget?",
        "Under $30 per person. Which area?",
        "Downtown. Any timing constraint?",
        [("web_search", {"query": "Italian restaurant downtown under $30 open past 10pm"})],
        "Found an Italian restaurant downtown, $22/person, open until 11pm.",
    ],
    "TC-64": ['{"title":"The Matrix","year":1999,"rating":9.0,"genre":"sci-fi","summary":"A classic."}'],
    "TC-65": [
        [("get_weather", {"location": "Tokyo, Japan"})],
        '{"location": "Tokyo", "temperature_celsius": 28, "condition": "Sunny", "recommendation": "Wear light clothing."}',
    ],
    "TC-66": [[("get_contacts", {"query": "engineering"})], json.dumps({"query": "engineering", "total": 2, "contacts": _ENGINEERS})],
    "TC-67": [
        [("get_stock_price", {"ticker": "NVDA"}), ("web_search", {"query": "NVDA recent news"})],
        '{"ticker": "NVDA", "price": 892.5, "currency": "USD", "signal": "buy", "reasoning": "Revenue growth of 265% YoY driven by AI demand."}',
    ],
    "TC-68": ['{"task_id": "PROJ-127", "status": "in_progress", "assignee": "me"}'],
    "TC-69": [
        [("get_weather", {"location": "San Francisco"}), ("get_stock_price", {"ticker": "AAPL"})],
        '{"date": "2026-03-20", "weather": {"location": "San Francisco", "temperature": 18, "condition": "Foggy"}, "market": {"ticker": "AAPL",'
        ' "price": 192.3, "direction": "down"}, "action_items": ["Bring a jacket, fog expected in SF.", "Monitor AAPL position, stock dropped 1.11%."]}',
    ],
}
WRONG: list[list[tuple[str, dict[str, Any]]] | str] = [[("get_weather", {"location": "Atlantis"})], "Done."]
#: Right but for a part.
PARTIAL = {"TC-05": [[("create_calendar_event", {**_STANDUP, "attendees": []})], "It is in the calendar."]}
SHORT = tuple(RIGHT)[:15]
#: Which scenarios fail, by what is planted. Of b12x: one chain of four, two of other categories, and those without right turns. HALF: half of the points.
FAIL = {"right calls": (), "wrong calls": SHORT, "a third wrong": SHORT[::3], "b12x-fp8-1m": ("TC-29", "TC-30", "TC-61")}
HALF = {"b12x-fp8-1m": ("TC-05",)}
#: Of IFEval: prompts, how many of them have two instructions, and how many of the others fail: 84.8 % of the prompts and 88.1 % of the instructions pass.
PROMPTS, TWO, FAILED = 33, 9, 5


def planted(asked: Mapping[str, str], name: str) -> dict[str, list[dict[str, Any]]]:
    """Return the content of the stub's file `turns`. Three scenarios ask what one before them asks: they get its turns."""
    chosen: dict[str, Any] = {}
    for key, text in asked.items():
        right = PARTIAL[key] if key in HALF.get(name, ()) else RIGHT.get(key, WRONG)
        chosen.setdefault(text, WRONG if key in FAIL[name] else right)
    return {text: [_turn(each) for each in turns] for text, turns in chosen.items()}


def _turn(turn: list[tuple[str, dict[str, Any]]] | str) -> dict[str, Any]:
    return {"answer": turn} if isinstance(turn, str) else {"calls": [{"name": name, "arguments": arguments} for name, arguments in turn]}


def scores(name: str) -> dict[str, float]:
    """Return the score of each category of the short scenarios, and of all, in percent."""
    passed = [key not in FAIL[name] for key in SHORT]
    found = {category: round(100 * sum(passed[3 * place : 3 * place + 3]) / 3) for place, category in enumerate(CATEGORIES)}
    return {"score_percent": round(100 * sum(passed) / len(passed)), **found}


def ifeval() -> tuple[list[dict[str, Any]], dict[str, list[dict[str, Any]]]]:
    """Return prompts with their instructions, and the content of the stub's file `turns`."""
    kinds, prompts, turns = ("punctuation:no_comma", "change_case:english_lowercase"), list[dict[str, Any]](), dict[str, list[dict[str, Any]]]()
    for key in range(PROMPTS):
        asked = kinds[: 2 if key < TWO else 1]
        prompts.append({"key": key, "prompt": f"Name {key + 2} rivers.", "instruction_id_list": list(asked), "kwargs": [{} for _each in asked]})
        turns[prompts[-1]["prompt"]] = [{"answer": "the elbe, the oder" if key >= PROMPTS - FAILED else "the elbe and the oder"}]
    return prompts, turns
