"""Questions to a shop's and a network's help desk, in several wordings, with slots for what may differ."""

from __future__ import annotations

from dataclasses import dataclass

PRODUCTS = (
    "Aurora kettle",
    "Nimbus kettle",
    "Orion X200",
    "Orion X300",
    "Vega lamp",
    "Lyra headphones",
    "Lyra speaker",
    "Atlas backpack",
    "Boreal jacket",
    "Helix router",
    "Helix Pro router",
    "Quanta tablet",
    "Quanta Mini tablet",
    "Sable desk",
    "Tern bicycle",
    "Ultra 5G phone",
    "Ultra 4G phone",
    "Zephyr fan",
)
NUMBERS = ("2", "3", "5", "7", "10", "12", "14", "20", "30", "45", "60", "90", "100", "250")
CITIES = (
    "Oslo",
    "Rome",
    "Lisbon",
    "Vienna",
    "Dublin",
    "Prague",
    "Helsinki",
    "Athens",
    "Madrid",
    "Warsaw",
    "Zurich",
    "Riga",
)
PEOPLE = ("Anna", "Boris", "Carla", "David", "Elena", "Farid", "Greta", "Hugo", "Ines", "Jonas")
DATES = (
    "March 3",
    "March 8",
    "April 12",
    "May 21",
    "June 5",
    "July 4",
    "August 15",
    "September 9",
    "October 30",
    "Monday",
    "Tuesday",
    "Thursday",
    "Friday",
    "Sunday",
)
SLOTS = {"product": PRODUCTS, "n": NUMBERS, "city": CITIES, "person": PEOPLE, "date": DATES}


@dataclass(frozen=True)
class Question:
    """One question.

    Attributes:
        wordings: ways to ask it; all have the same answer. ``{product}`` etc. are slots; ``{city2}`` is
            a second one of its kind.
        opposites: wordings that have another answer: negated, with an opposite word, or another action.
    """

    wordings: tuple[str, ...]
    opposites: tuple[str, ...] = ()


QUESTIONS = (
    Question(
        (
            "How do I return the {product}?",
            "What is the way to return the {product}?",
            "I want to return the {product}. How does that work?",
            "How can I return my {product}?",
            "Can you tell me how to return the {product}?",
        ),
        (
            "How do I keep the {product} after asking for a return?",
            "I do not want to return the {product}. What now?",
            "How do I exchange the {product}?",
            "What is the way to repair the {product}?",
        ),
    ),
    Question(
        (
            "How long is the warranty of the {product}?",
            "How long does the warranty of the {product} last?",
            "For how long is the {product} under warranty?",
            "Tell me how long the {product}'s warranty is.",
        ),
        ("How long is the {product} used when it is not under warranty?",),
    ),
    Question(
        (
            "Is the {product} waterproof?",
            "Can you tell me if the {product} is waterproof?",
            "I would like to know if the {product} is waterproof.",
            "The {product} - is it waterproof?",
        ),
        ("Is the {product} not waterproof?", "Why is the {product} not waterproof?"),
    ),
    Question(
        (
            "How do I enable night mode on the {product}?",
            "What do I do to enable night mode on the {product}?",
            "Please explain how to enable night mode on the {product}.",
            "How can night mode be enabled on the {product}?",
        ),
        (
            "How do I disable night mode on the {product}?",
            "What do I do to disable night mode on the {product}?",
        ),
    ),
    Question(
        (
            "How much does the {product} cost?",
            "What does the {product} cost?",
            "What is the price of the {product}?",
            "Could you tell me the price of the {product}?",
            "What's the {product}'s price?",
        ),
        ("How much does the {product} cost without tax?",),
    ),
    Question(
        (
            "How do I connect the {product} to the internet?",
            "What is the way to connect the {product} to the internet?",
            "How can I connect my {product} to the internet?",
            "Please explain how to connect the {product} to the internet.",
        ),
        (
            "How do I disconnect the {product} from the internet?",
            "How do I upgrade the {product} over the internet?",
        ),
    ),
    Question(
        (
            "Can I get a refund after {n} days?",
            "Is it possible to get a refund after {n} days?",
            "Do you still give a refund after {n} days?",
            "Would I still get a refund after {n} days?",
        ),
        ("Can I not get a refund after {n} days?", "Can I get a refund before {n} days?"),
    ),
    Question(
        (
            "What happens if I pay {n} days late?",
            "What are the consequences of paying {n} days late?",
            "If I pay {n} days late, what happens?",
            "What do you do if I pay {n} days late?",
        ),
        ("What happens if I pay {n} days early?",),
    ),
    Question(
        (
            "How do I add {n} users to my plan?",
            "What is the way to add {n} users to my plan?",
            "I want to add {n} users to my plan, how do I do that?",
            "How can I add {n} users to my plan?",
        ),
        (
            "How do I remove {n} users from my plan?",
            "I want to remove {n} users from my plan, how do I do that?",
            "How do I verify {n} users of my plan?",
        ),
    ),
    Question(
        (
            "Do you deliver to {city} within {n} days?",
            "Can you deliver to {city} within {n} days?",
            "Is delivery to {city} possible within {n} days?",
            "Would a delivery to {city} take {n} days or less?",
        ),
        ("Do you never deliver to {city} within {n} days?",),
    ),
    Question(
        (
            "How do I move money from {person}'s account to {person2}'s account?",
            "What is the way to move money from {person}'s account to {person2}'s account?",
            "How can I move money to {person2}'s account from {person}'s account?",
            "Please explain how to move money from {person}'s account to {person2}'s account.",
        ),
    ),
    Question(
        (
            "How long does the train from {city} to {city2} take?",
            "How long is the train ride from {city} to {city2}?",
            "How long does it take by train to {city2} from {city}?",
            "Tell me how long the train from {city} to {city2} takes.",
        ),
    ),
    Question(
        (
            "When does the last flight from {city} to {city2} leave?",
            "When is the last flight from {city} to {city2}?",
            "Can you tell me when the last flight to {city2} from {city} leaves?",
            "I need to know when the last flight from {city} to {city2} leaves.",
        ),
        (
            "When does the first flight from {city} to {city2} leave?",
            "When is the first flight from {city} to {city2}?",
        ),
    ),
    Question(
        (
            "Did {person} send the invoice to {person2}?",
            "Was it {person} who sent the invoice to {person2}?",
            "Can you check if {person} sent the invoice to {person2}?",
            "Has {person} sent the invoice to {person2}?",
        ),
        ("Did {person} not send the invoice to {person2}?",),
    ),
    Question(
        (
            "Does {person} report to {person2}?",
            "Is it true that {person} reports to {person2}?",
            "Can you tell me if {person} reports to {person2}?",
            "I wonder if {person} reports to {person2}.",
        ),
        ("Does {person} no longer report to {person2}?",),
    ),
    Question(
        (
            "Is the {product} better than the {product2}?",
            "Would you say the {product} is better than the {product2}?",
            "The {product}: is it better than the {product2}?",
            "Do you think the {product} is better than the {product2}?",
        ),
        ("Is the {product} worse than the {product2}?",),
    ),
    Question(
        (
            "Can I use the {product} as a replacement for the {product2}?",
            "May the {product} be used as a replacement for the {product2}?",
            "Is it okay to use the {product} as a replacement for the {product2}?",
            "Would the {product} work as a replacement for the {product2}?",
        ),
        ("Can't I use the {product} as a replacement for the {product2}?",),
    ),
    Question(
        (
            "Are you open on {date}?",
            "Is your shop open on {date}?",
            "Will the shop be open on {date}?",
            "Can you tell me if you are open on {date}?",
            "I want to know if you are open on {date}.",
        ),
        ("Are you closed on {date}?", "Is your shop not open on {date}?"),
    ),
    Question(
        (
            "Can I move my appointment to {date}?",
            "Is it possible to move my appointment to {date}?",
            "I would like to move my appointment to {date}, can I?",
            "Could you move my appointment to {date}?",
        ),
        (
            "Can I move my appointment from {date}?",
            "Can I cancel my appointment on {date}?",
            "Can I confirm my appointment on {date}?",
        ),
    ),
    Question(
        (
            "Why was I charged twice on {date}?",
            "Why did you charge me twice on {date}?",
            "I was charged twice on {date}, why?",
            "Can you explain why I was charged twice on {date}?",
        ),
        ("Why was I not charged twice on {date}?", "Why was I not charged on {date}?"),
    ),
    Question(
        (
            "How do I reset my password?",
            "What is the way to reset my password?",
            "How can I reset my password?",
            "Please tell me how to reset my password.",
            "I need to reset my password, how do I do that?",
        ),
        (
            "How do I avoid resetting my password?",
            "Why can't I reset my password?",
            "How do I unlock my password?",
            "How do I delete my password?",
        ),
    ),
    Question(
        (
            "How do I unlock my account?",
            "What do I have to do to unlock my account?",
            "How can I get my account unlocked?",
            "Please explain how to unlock my account.",
        ),
        (
            "How do I lock my account?",
            "What do I have to do to lock my account?",
            "How do I reset my account?",
            "What do I have to do to close my account?",
        ),
    ),
    Question(
        (
            "Can I pay by credit card?",
            "Is it possible to pay by credit card?",
            "Do you accept payment by credit card?",
            "May I pay by credit card?",
        ),
        ("Can I pay without a credit card?", "Do you accept payment by debit card?"),
    ),
    Question(
        (
            "How do I cancel my contract?",
            "What is the way to cancel my contract?",
            "How can I cancel my contract?",
            "I want to cancel my contract, how do I do that?",
        ),
        (
            "How do I renew my contract?",
            "How do I not cancel my contract by accident?",
            "How do I transfer my contract?",
            "What is the way to change my contract?",
        ),
    ),
    Question(
        (
            "Who do I contact about a damaged {product}?",
            "Whom should I contact about a damaged {product}?",
            "My {product} arrived damaged, who do I contact?",
            "Who can help me with a damaged {product}?",
        ),
        ("Where do I send a damaged {product}?", "When is a {product} damaged?"),
    ),
    Question(
        (
            "Where can I buy the {product} in {city}?",
            "Where in {city} can I buy the {product}?",
            "Where is the {product} sold in {city}?",
            "Tell me where I can buy the {product} in {city}.",
        ),
        (
            "Where can I sell the {product} in {city}?",
            "When can I buy the {product} in {city}?",
            "Where can I repair the {product} in {city}?",
            "Where can I rent the {product} in {city}?",
        ),
    ),
    Question(
        (
            "Does the {product} work with {n} volts?",
            "Will the {product} work with {n} volts?",
            "Can the {product} be used with {n} volts?",
            "Is it possible to use the {product} with {n} volts?",
        ),
        ("Does the {product} not work with {n} volts?", "Does the {product} work with {n} watts?"),
    ),
    Question(
        (
            "What is the discount for {n} pieces of the {product}?",
            "What discount do I get for {n} pieces of the {product}?",
            "How big is the discount for {n} pieces of the {product}?",
            "Could you tell me the discount for {n} pieces of the {product}?",
        ),
        ("What is the surcharge for {n} pieces of the {product}?",),
    ),
)
