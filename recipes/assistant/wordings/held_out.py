"""Wordings of held-out set 2: written before any training, never used in training.

The grammar is that of `grammar.py`. `heldout.disjointness` checks that training clauses cannot
produce any clause here.
"""

from __future__ import annotations

from .grammar import Clauses, Wordings

GREETING: Clauses = (
    "hello, thank you for answering", "hi, I have a question", "good morning to you",
    "hello again", "oh hi, can you help me", "good afternoon, is this customer service",
)  # fmt: skip

NAME: Clauses = (
    "my name would be {name}", "hello from {name}", "you are speaking to {name} here",
    "the account holder is {name}", "it's me, {name}", "I'm called {name}",
    "please note my name, {name}", "the name on the account is {name}",
)  # fmt: skip

ACCOUNT: Clauses = (
    "my account has the number {account}", "the number of my account is {account}",
    "I'm calling about account {account}", "please look up account {account}",
    "you can find me under account number {account}", "that's account number {account}",
    "the customer number is {account}", "I have customer number {account}",
)  # fmt: skip

NAME_ACCOUNT: Clauses = (
    "my name is {name}, account number {account}", "{name} speaking, account {account}",
    "I'm {name} with account {account}", "this is {name} and my account number is {account}",
)  # fmt: skip

PROBLEM: dict[str, Clauses] = {
    "refund": (
        "I would like you to refund my {product}",
        "my {product} was charged twice and I need that money back",
        "I think you owe me a refund for the {product}",
        "when do I get the refund for my {product}",
        "you took too much money for my {product}, please pay it back",
        "I was told I would get my money back",
        "please give me a refund, I was billed twice",
    ),
    "billing": (
        "my {product} bill went up and I'd like to know why",
        "can someone explain my {product} bill to me",
        "I don't understand the charges on my bill",
        "could I have a copy of the invoice for my {product}",
        "what is this charge on my {product} bill",
        "I have a question about my last invoice",
        "why did you send me such a high bill for the {product}",
    ),
    "payment": (
        "I want to make a payment for my {product} bill",
        "is it possible to pay the {product} bill by card",
        "I need to pay what I owe on my {product}",
        "could we set up a direct debit for the {product}",
        "I would like to pay my bill in instalments",
        "can you take my payment for the {product} over the phone",
        "I need an extension to pay my {product} bill",
    ),
    "fault": (
        "the {product} has stopped, I can't get it working",
        "something's wrong with the {product} again",
        "my {product} is broken and won't switch on",
        "we're having a lot of trouble with our {product}",
        "the {product} keeps going down",
        "I think there's a problem with my {product}, it's so slow",
        "could you send an engineer to repair our {product}",
        "my {product} doesn't connect anymore",
    ),
    "cancel": (
        "I'm calling to cancel the {product}",
        "we would like to stop the {product}, we don't need it",
        "could you please end my contract for the {product}",
        "I've had enough and I want to cancel my {product}",
        "I don't want the {product} any more, please close it",
        "my plan is to leave you and cancel the contract",
        "we're switching to a different company, so cancel the {product}",
    ),
    "upgrade": (
        "is there a better {product} I could upgrade to",
        "I want to upgrade, do you have offers on the {product}",
        "we'd like to get the new {product}",
        "could you tell me what a faster {product} would cost",
        "I'm calling about an upgrade for my {product}",
        "I'd be interested in your offer for the {product}",
        "can we add a second {product} to the account",
    ),
    "delivery": (
        "the {product} I ordered never came",
        "I ordered a {product} but it still hasn't been delivered",
        "my parcel with the {product} is late",
        "can you tell me when my {product} will be delivered",
        "I'm calling to track my parcel",
        "the courier never arrived with the {product}",
        "do you know where my {product} order is",
    ),
    "move": (
        "we are moving to another house and want to keep our {product}",
        "I just moved, so my address needs updating",
        "could you change my address please",
        "I'm moving to a new flat, can you transfer my {product}",
        "please move the {product} to our new address",
        "I have to give you my new address",
        "my family is moving home and the {product} has to come with us",
    ),
    "fraud": (
        "there is a payment on my account that I don't recognise",
        "someone stole my card and used it",
        "I was scammed by a fake caller",
        "I believe somebody has hacked my account",
        "a payment was made without my permission",
        "a stranger ordered a {product} using my details",
        "there are suspicious transactions on the account",
    ),
    "login": (
        "I tried to log in but the password is wrong",
        "the app has locked me out",
        "I've forgotten the password for my account",
        "please help me reset my PIN",
        "I'm unable to sign in to the website",
        "could you unlock my login please",
        "the code to sign in never arrives",
    ),
}

AMOUNT: dict[str, Clauses] = {
    "money": (
        "the amount comes to {amount}", "I can see that {amount} was taken",
        "it was a charge of {amount}", "in total it's {amount}",
        "the amount in question is {amount}",
    ),
    "payment": (
        "I'd like to pay {amount}", "the amount I owe is {amount}", "the balance comes to {amount}",
        "please take {amount}",
    ),
    "price": (
        "the price I saw was {amount}", "I pay {amount} a month", "it was {amount} in the offer",
        "my budget would be {amount}",
    ),
}  # fmt: skip

DATE: dict[str, Clauses] = {
    "past": (
        "all of this happened {on_past}", "I first noticed it {on_past}",
        "it's been happening since {past}", "the date it happened was {past}", "it began {on_past}",
    ),
    "future": (
        "the best date would be {future}", "could you do it {on_future}",
        "I want it done {on_future}", "we plan to do it {on_future}", "it's for {future}",
    ),
}  # fmt: skip

URGENCY: dict[str, Clauses] = {
    "high": (
        "please help me quickly, it's urgent", "this needs to be fixed immediately",
        "I really can't wait", "it's quite an emergency", "I need you to hurry",
        "please do it as soon as you can", "this is extremely urgent for me",
        "I want this sorted right away",
    ),
    "low": (
        "I'm really not in a hurry", "there's really no rush", "this isn't urgent at all",
        "please don't hurry", "you can take your time with this", "it's fine if it has to wait",
        "I have time, it can wait", "no need to hurry at all",
    ),
}  # fmt: skip

CHATTER: Clauses = (
    "I've had an account for {count} years", "I told {other} about this before",
    "I called {count} times about it", "{other} told me to call you",
    "my reference number is {order}", "sorry, I'm a bit upset", "I always pay my bills",
    "my son told me to ask you",
    "I don't know much about technology", "I wrote to you {count} times",
    "the case number was {order}",
)  # fmt: skip

CLOSING: Clauses = (
    "thank you so much for your help", "thanks again", "can you please help me with this",
    "call me any time on {phone}", "I hope to hear from you", "okay, that's all from me",
    "thank you and goodbye",
)  # fmt: skip

REDACT: Clauses = (
    "the number of my card is {card}", "I want to pay with card {card}",
    "please use my card, it's {card}", "my visa card has number {card}",
    "you should have card {card} for me", "I lost my card, the number was {card}",
    "you can call me back any time on {phone}", "you have my mobile number, {phone}",
    "please text {phone} when it's done", "the phone number on my account is {phone}",
    "my home phone is {phone}", "if you need me, ring {phone}",
    "take it from {card} and then call {phone}", "both {phone} and {phone} are mine",
)  # fmt: skip

HELD_OUT = Wordings(
    GREETING, NAME, ACCOUNT, NAME_ACCOUNT, PROBLEM, AMOUNT, DATE, URGENCY, CHATTER, CLOSING, REDACT
)
