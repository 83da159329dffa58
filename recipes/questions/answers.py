"""Answers of the same help desk, in several wordings, with the slots of the questions."""

from __future__ import annotations

from galley.demo.questions import Question

ANSWERS = (
    Question(
        (
            "Pack the {product} in its box, print the label from your order page and drop it off within "
            "{n} days.",
            "Print the return label on your order page, put the {product} back into its box and hand it "
            "in within {n} days.",
            "You have {n} days: box the {product}, add the label from the order page and drop it off.",
        ),
        (
            "The {product} cannot be returned once {n} days have passed.",
            "Returns of the {product} are not possible, even within {n} days.",
        ),
    ),
    Question(
        (
            "The {product} comes with a warranty of {n} months.",
            "The warranty of the {product} lasts {n} months.",
            "For {n} months the {product} is under warranty.",
        ),
        ("The {product} has no warranty.", "The {product} comes with a warranty of {n} years."),
    ),
    Question(
        (
            "Yes, the {product} is waterproof.",
            "The {product} is indeed waterproof.",
            "Yes. You can use the {product} in the rain: it is waterproof.",
        ),
        (
            "No, the {product} is not waterproof.",
            "Unfortunately the {product} is not waterproof; keep it dry.",
        ),
    ),
    Question(
        (
            "Open the settings of the {product}, choose Display and turn on night mode.",
            "In the settings of the {product}, under Display, switch night mode on.",
            "Night mode of the {product} is turned on under Display in the settings.",
        ),
        (
            "Open the settings of the {product}, choose Display and turn off night mode.",
            "The {product} does not have a night mode.",
        ),
    ),
    Question(
        (
            "The {product} costs {n} euros.",
            "The price of the {product} is {n} euros.",
            "You pay {n} euros for the {product}.",
        ),
        ("The {product} is free.", "The {product} costs {n} euros a month."),
    ),
    Question(
        (
            "Yes, you get a full refund within {n} days.",
            "Within {n} days we refund the full price.",
            "A full refund is possible within {n} days.",
        ),
        (
            "No, there is no refund after {n} days.",
            "After {n} days you get a voucher instead of a refund.",
            "Only half of the price is refunded within {n} days.",
        ),
    ),
    Question(
        (
            "A late fee of {n} euros is added to your next bill.",
            "We add a late fee of {n} euros to the next bill.",
            "Your next bill then has a late fee of {n} euros.",
        ),
        ("There is no late fee.", "A late fee of {n} euros is taken from your account at once."),
    ),
    Question(
        (
            "Yes, we deliver to {city} within {n} days.",
            "Delivery to {city} takes at most {n} days.",
            "Orders to {city} arrive in {n} days or less.",
        ),
        (
            "No, we do not deliver to {city}.",
            "Delivery to {city} takes at least {n} days.",
        ),
    ),
    Question(
        (
            "Choose {person}'s account, press Transfer and enter {person2}'s account as the receiver.",
            "Open {person}'s account, press Transfer and give {person2}'s account as the receiver.",
            "Under Transfer in {person}'s account, enter {person2}'s account as the receiver.",
        ),
        ("Money cannot be moved from {person}'s account to {person2}'s account.",),
    ),
    Question(
        (
            "The train from {city} to {city2} takes {n} minutes.",
            "From {city} to {city2} it is {n} minutes by train.",
            "By train you get from {city} to {city2} in {n} minutes.",
        ),
        (
            "There is no direct train from {city} to {city2}.",
            "The train from {city} to {city2} takes {n} hours.",
        ),
    ),
    Question(
        (
            "Yes, {person} sent the invoice to {person2} on {date}.",
            "{person} sent {person2} the invoice on {date}.",
            "The invoice went from {person} to {person2} on {date}.",
        ),
        (
            "No, {person} has not sent the invoice to {person2} yet.",
            "{person} withdrew the invoice to {person2} on {date}.",
        ),
    ),
    Question(
        (
            "Yes, {person} reports to {person2}.",
            "{person2} is {person}'s manager.",
            "{person} works for {person2}.",
        ),
        ("No, {person} does not report to {person2}.", "{person} no longer reports to anyone."),
    ),
    Question(
        (
            "The {product} is better than the {product2}: it lasts longer.",
            "Of the two, the {product} is the better one, because it lasts longer than the {product2}.",
            "I would take the {product}, which lasts longer than the {product2}.",
        ),
        (
            "The {product} is worse than the {product2}: it breaks sooner.",
            "The {product} and the {product2} are equally good.",
        ),
    ),
    Question(
        (
            "Yes, we are open on {date} from 9 to 17.",
            "On {date} the shop is open from 9 to 17.",
            "The shop opens on {date} at 9 and closes at 17.",
        ),
        ("No, the shop is closed on {date}.", "On {date} we are open in the morning alone."),
    ),
    Question(
        (
            "Yes, your appointment can be moved to {date}.",
            "No problem: we moved your appointment to {date}.",
            "Your appointment is now on {date}.",
        ),
        (
            "There is nothing free on {date}, so your appointment stays where it is.",
            "Your appointment on {date} was canceled.",
        ),
    ),
    Question(
        (
            "Press Forgot password on the sign-in page and follow the link in the email.",
            "On the sign-in page, press Forgot password; the email that you get has a link to follow.",
            "Follow the link in the email that Forgot password on the sign-in page sends you.",
        ),
        (
            "Only an administrator can reset your password.",
            "Call us to reset your password; it cannot be done on the sign-in page.",
        ),
    ),
    Question(
        (
            "Yes, we accept credit cards.",
            "You can pay by credit card.",
            "Payment by credit card is possible.",
        ),
        (
            "No, we do not accept credit cards.",
            "Only debit cards are accepted.",
            "You can pay by credit card above {n} euros.",
        ),
    ),
    Question(
        (
            "You can cancel the contract at the end of each month in your account, under Contract.",
            "Under Contract in your account you can cancel at the end of each month.",
            "Go to Contract in your account; the contract can be canceled at the end of each month.",
        ),
        (
            "The contract cannot be canceled before its term of {n} months is over.",
            "Your contract is renewed at the end of each month.",
        ),
    ),
    Question(
        (
            "Write to our support team with a photo of the damaged {product}.",
            "Send our support team a photo of the damaged {product}.",
            "Our support team needs a photo of the damaged {product}; please send one.",
        ),
        (
            "Throw the damaged {product} away.",
            "Send the damaged {product} to our warehouse in {city}.",
        ),
    ),
    Question(
        (
            "The {product} is sold in our shop in {city}, at the main station.",
            "In {city} you find the {product} in our shop at the main station.",
            "Our shop at the main station of {city} has the {product}.",
        ),
        (
            "The {product} is not sold in {city}.",
            "The {product} is sold in {city}, but is out of stock.",
        ),
    ),
    Question(
        (
            "Yes, the {product} works with {n} volts.",
            "The {product} can be used with {n} volts.",
            "With {n} volts the {product} works fine.",
        ),
        (
            "No, the {product} does not work with {n} volts.",
            "With {n} volts the {product} would be damaged.",
        ),
    ),
    Question(
        (
            "From {n} pieces of the {product} on, the discount is a tenth of the price.",
            "The discount for {n} pieces of the {product} is a tenth of the price.",
            "Buy {n} pieces of the {product} and you save a tenth of the price.",
        ),
        (
            "There is no discount for {n} pieces of the {product}.",
            "The discount for {n} pieces of the {product} is half of the price.",
        ),
    ),
)
