"""What callers say in training: clauses written in a small grammar.

`[a|b|]` means one of the alternatives (the last one here is empty, and alternatives may nest);
`{slot}` is filled by the generator. A clause is a sentence without its capital and full stop.
The clauses of held-out set 2 live in `wordings_heldout.py` and are never used here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

Clauses = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wordings:
    """One complete, self-consistent set of clauses for callers' messages."""

    greeting: Clauses
    name: Clauses
    account: Clauses
    name_account: Clauses
    problem: dict[str, Clauses]
    amount: dict[str, Clauses]
    date: dict[str, Clauses]
    urgency: dict[str, Clauses]
    chatter: Clauses
    closing: Clauses
    redact: Clauses


def clauses_of(wordings: Wordings) -> Iterator[str]:
    """Every clause template of a set of wordings."""
    for spec in fields(Wordings):
        group = getattr(wordings, spec.name)
        for options in group.values() if isinstance(group, dict) else (group,):
            yield from options


GREETING: Clauses = (
    "hello", "hi", "hi there", "hello there", "good [morning|afternoon|evening]", "hey",
    "[hello|hi], I hope you can help me", "[hello|hi], thanks for [taking|answering] my call",
    "good [morning|afternoon], I have a [quick|small|simple] [question|request] for you",
    "hello, am I through to [customer service|support|the right department]",
    "[yes|oh], hello", "hi, [can|could] you help me with something",
    "good day", "[thank you|thanks] for picking up", "hello, is this [the helpline|customer care]",
)  # fmt: skip

NAME: Clauses = (
    "my name is {name}", "my name's {name}", "this is {name}", "I'm {name}", "I am {name}",
    "{name} here", "{name} speaking", "it's {name} [calling|speaking|here]",
    "this is {name} [calling|speaking]", "the name is {name}", "the name's {name}",
    "you're [talking|speaking] [to|with] {name}", "my full name is {name}",
    "you can [put|write] my name down as {name}", "I'm calling, my name is {name}",
    "the account is in the name of {name}", "it's registered to {name}, that's me",
    "it's under [the name|] {name}", "you'll find me [under|as] {name}",
    "I go by {name}", "[um|well], my name is {name}", "{name} is my name", "{name} is the name",
    "the customer is {name}, that's me", "I'm the account holder, {name}",
    "for the record, I'm {name}", "let me [start|begin] with my name, {name}",
)  # fmt: skip

ACCOUNT: Clauses = (
    "my account number is {account}", "the account number is {account}", "my account is {account}",
    "account number {account}", "account {account}", "it's account {account}",
    "my customer number is {account}", "my account number's {account}",
    "the account is {account}", "[the number|the reference] on my account is {account}",
    "[I have|I've got] account number {account}", "my account ends up being {account}",
    "you can look me up [under|with|by] [account|customer number|number] {account}",
    "I have the account number here, [it's|it is] {account}", "customer number {account}",
    "[it says|it reads] {account} [on my letter|at the top of my bill] for the account number",
    "the account in question is {account}", "for my account, [that's|it's] {account}",
    "[um|let me see], the account number, that's {account}",
    "my customer account is {account}", "I'm on account {account}",
    "please open account {account}", "please [pull|bring] up account {account}",
    "my account with you is {account}", "{account} is my account number",
    "{account} is the account", "{account} is my customer number",
)  # fmt: skip

NAME_ACCOUNT: Clauses = (
    "this is {name}, account [number|] {account}", "I'm {name}, [my|] account number {account}",
    "my name is {name} and my account [number|] is {account}",
    "{name} here, account {account}", "{name}, account number {account}",
    "it's {name} [calling|] about account {account}",
    "account {account}, the name is {name}", "account number {account}, [name|under] {name}",
    "I'm {name} and I have account {account}", "this is {name} [calling|] from account {account}",
    "I'm {name}, customer number {account}", "{name} with account number {account}",
    "you're speaking with {name}, customer {account}",
)  # fmt: skip

PROBLEM: dict[str, Clauses] = {
    "refund": (
        "[I was|I have been|I've been|I got|I was just] charged twice for [my|the] {product}",
        "[I'd like|I want|I need|I would like] [a refund|my money back|to get my money back] "
        "for [my|the] {product}",
        "[I'd like|I want|I need|I would like] [a refund|my money back|to be refunded]",
        "you [took|have taken|collected] [the payment|the money|my payment] [twice|two times]",
        "you [overcharged|have overcharged|charged] me [too much|] for [my|the] {product}, "
        "[and I want|so I'd like] [it|that|the money] back",
        "I [paid|have paid] too much for [my|the] {product}",
        "[can|could] [I|we] [get|have] a refund [for|on] [my|the] {product}",
        "[can|could] you [refund me|refund|pay back] [what I paid|the money] for [my|the] "
        "{product}",
        "I [returned|sent back] [my|the] {product} and [I'm still waiting for|I haven't had|"
        "never got] [my|the] [refund|money]",
        "[my|the] refund for [my|the] {product} [hasn't come|never came|still hasn't arrived]",
        "[there's been|there was] a double [charge|payment] for [my|the] {product}",
        "[I was|I've been] billed [twice|two times] and [I want|I'd like] the money "
        "[back|returned]",
        "[I'm asking|I'm calling] for a refund of {amount}",
        "[please|can you] [refund|return|give me back] [the|my] {amount} [I paid|you took]",
        "you took {amount} [from|off] me by mistake and I want it back",
        "you [owe me|should pay me back] {amount} [for|on] [my|the] {product}",
        "I'm [owed|due] [a refund|money] [for|on] [my|the] {product}",
        "I want to be [reimbursed|paid back|compensated] for [my|the] {product}",
        "[I'd like|I want] to claim [my money|the money] back for [my|the] {product}",
        "I was charged {amount} twice {on_past}",
        "I paid for [my|the] {product} {on_past} and I [want|need] [a refund|the money back]",
        "[please|could you] [send|put] the money for [my|the] {product} back [on my card|to me]",
        "the payment for [my|the] {product} was taken [twice|two times|in error]",
        "it's about a refund [for|on] [my|the] {product}",
    ),
    "billing": (
        "I [don't understand|can't make sense of|can't follow] [my|the] [last|latest|] bill",
        "I have a question about [my|the] {product} bill",
        "[my|the] {product} bill [is|looks|seems] [higher|bigger|more] than [usual|normal|before]",
        "[my|the] bill for [my|the] {product} [has gone up|went up|doubled]",
        "[can|could] you explain [a|this|the] charge on my [bill|{product} bill|invoice]",
        "[can|could] you [tell me|explain] why my {product} bill [is so high|went up]",
        "there's [a charge|an item|something] on my [bill|invoice] [that|] I don't understand",
        "I don't know what this charge [for|of] {amount} is for",
        "what is the {amount} on my [bill|invoice|statement] for",
        "I need a copy of my [last|latest|] [bill|invoice|{product} bill]",
        "[can|could] you [send|email] me [a copy of|] [my|the] {product} [invoice|bill]",
        "I'd like [a breakdown|an explanation] of my [bill|{product} bill|{product} charges]",
        "[please|could you] [go through|go over|check] [my|the] {product} bill with me",
        "I'm [looking at|reading] my {product} bill and it [doesn't add up|looks wrong|"
        "makes no sense]",
        "the bill {on_past} was [higher|bigger] than I expected",
        "why is [my|the] {product} bill {amount} [this month|now]",
        "my [bill|invoice] [says|shows] {amount} and I don't know why",
        "I'm confused [by|about] the [charges|fees] [for|on] my {product}",
        "I [haven't received|never got|didn't get] [a|my] bill for [my|the] {product}",
        "[I'm calling|it's] about [my|the] [bill|invoice] for [my|the] {product}",
        "I want to [understand|check|query] [a charge|the charges] [for|on] [my|the] {product}",
        "what [exactly|] am I being charged for on my {product} bill",
        "when is my [next|] {product} bill [issued|sent out]",
        "the [prices|figures] on my {product} invoice [aren't clear|are a mystery to me]",
    ),
    "payment": (
        "[I'd like|I want|I need|I would like] to pay [my|the] [bill|balance|{product} bill]",
        "[can|could] I pay [my|the] [bill|{product} bill|balance] [over the phone|by card]",
        "I'd like to make a payment [for|on|towards] [my|the] {product}",
        "I [want|need] to set up [a direct debit|automatic payments|a standing order] for "
        "[my|the] {product}",
        "[can|could] I [spread the cost|pay in instalments|pay monthly] for [my|the] {product}",
        "[can|could] [we|you] [arrange|set up] a payment plan for [my|the] {product}",
        "I [can't pay|won't be able to pay] [my|the] {product} bill [on time|in full], "
        "can I have [more time|an extension]",
        "I'd like to change [the card|the bank account] I pay [with|from]",
        "I have a new [bank|card] [and I need|and want] to [update|change] my payment details",
        "I want to pay {amount} [towards|off|on] [my|the] {product} bill",
        "I'd like to [settle|clear|pay off] [my|the] [balance|{product} balance|debt]",
        "[please|can you] take [a payment|a card payment] of {amount} [from me|]",
        "I need to move my payment date",
        "[what's the best way to|how do I] pay [for|] [my|the] {product}",
        "[I'm calling|I'm ringing] to pay [my|the] {product} [bill|invoice]",
        "I [missed|forgot] a payment [for|on] my {product} and want to [pay it|make it]",
        "[I'd like|I want] to pay {on_future}",
        "[I have|I've got] a [bill|reminder] for {amount} and I want to pay it",
        "I want to put {amount} [on|towards] my [account|balance]",
        "my direct debit for the {product} needs [setting up|changing]",
        "let me pay [off|] what I owe [on|for] [my|the] {product}",
        "which [card|bank account] can I use to pay for my {product}",
    ),
    "fault": (
        "[my|the|our] {product} [isn't working|is not working|doesn't work|stopped working|"
        "has stopped working|is broken|is down|is dead]",
        "[my|the|our] {product} keeps [cutting out|dropping|failing|dropping out|stopping|"
        "disconnecting|crashing|freezing|going off]",
        "[my|the|our] {product} [has been|is] [very slow|really slow|so slow|unreliable|"
        "terrible|playing up|faulty]",
        "there's [a fault|something wrong|a problem|an issue|a technical problem] with "
        "[my|the|our] {product}",
        "[I have|I've got|we have|I'm having] [a problem|trouble|problems|issues|a fault] with "
        "[my|the|our] {product}",
        "[my|the|our] {product} [won't|doesn't|will not] [turn on|start|switch on|connect|work|"
        "respond]",
        "I [can't|cannot] get [my|the|our] {product} to [work|connect|start]",
        "we've had no {product} since {past}",
        "I've had no {product} since {past}",
        "[my|the|our] {product} went [down|dead|off] {on_past}",
        "[my|the|our] {product} [broke|failed|broke down|died] {on_past}",
        "[my|the|our] {product} hasn't worked [since {past}|properly since {past}|for days]",
        "nothing [happens|comes on] when I [turn on|use|try] [my|the|our] {product}",
        "[my|the|our] {product} [shows|is showing|gives me] [an error|a red light|"
        "an error message]",
        "I [keep losing|lost|have lost] [the connection|the signal|service] on [my|the|our] "
        "{product}",
        "[there's|I have] no [signal|service|connection] on [my|the|our] {product}",
        "[can|could] you [fix|repair|test|check] [my|the|our] {product}, "
        "it [isn't working|is broken|keeps failing|is very slow]",
        "I need [someone|an engineer|a technician] to [look at|fix|repair] [my|the|our] {product}",
        "[I want|I'd like] to report [a fault|a problem] with [my|the|our] {product}",
        "[I'm calling|I'm ringing] because [my|the|our] {product} [is down|doesn't work|"
        "isn't working|keeps cutting out]",
        "[my|the|our] {product} [is acting up|has a fault|has gone wrong|restarts all the time]",
        "[my|the|our] {product} [makes a noise|crackles|switches itself off] all the time",
        "[my|the|our] {product} [works|only works] [some|half] of the time",
        "something is wrong with [my|the|our] {product}, it [won't start|keeps stopping]",
        "the {product} you sent me [is faulty|is broken|doesn't work|won't turn on]",
        "since {past} [my|the|our] {product} has been [down|very slow|broken|useless]",
    ),
    "cancel": (
        "[I'd like|I want|I need|I would like] to cancel [my|the|our] {product}",
        "[I'd like|I want|I would like] to [end|stop|close|terminate] [my|the|our] {product} "
        "[contract|service|subscription|]",
        "[please|can you|could you] cancel [my|the|our] {product} [for me|]",
        "I [don't|no longer] [want|need] [my|the|our] {product} [anymore|any more|any longer]",
        "I'm [leaving|going to leave] [you|] and [want|need] to cancel [my|the|our] {product}",
        "I'm switching [my|the|our] {product} to [another|a different] [provider|company]",
        "[I'd like|I want] to leave, [please|] [close|cancel] my [account|contract]",
        "I want [out of|to get out of] my {product} contract",
        "[I've decided|I have decided] [to cancel|to end|not to renew] [my|the|our] {product}",
        "[please|can you] [stop|end|disconnect] [my|the|our] {product} {on_future}",
        "I want [my|the|our] {product} [cancelled|stopped|ended|disconnected] {on_future}",
        "[how do I|what do I need to do to] [cancel|end] [my|the|our] {product}",
        "I'm not [going to renew|renewing] [my|the|our] {product}",
        "[I'm calling|it's] to give notice on [my|the|our] {product}",
        "[I'd like|I want] to give [my notice|notice|you notice] [for|on] [my|the|our] {product}",
        "we [don't use|never use|hardly use] [the|our] {product}, so [please cancel it|"
        "we want to end it]",
        "my {product} contract is [up|ending] and I [don't want|do not want] to [continue|renew]",
        "I [found|have found] a better [deal|offer] elsewhere, so I'm cancelling [my|the|our] "
        "{product}",
        "take [the|my] {product} off my account, I [don't need it|don't use it]",
        "I want to [close|cancel] [my account|everything I have with you]",
        "[my|the|our] {product} is [too expensive|no use to me] and I want to cancel [it|]",
    ),
    "upgrade": (
        "[I'd like|I want|I would like] to upgrade [my|the|our] {product}",
        "[I'm|we're] interested in [a better|a faster|an upgraded|a bigger] {product}",
        "[can|could] I [get|have|move to] [a better|a bigger|a new|a faster|an upgraded] {product}",
        "[I'd like|I want] [a better|a bigger|a newer|an upgraded] {product}",
        "[can|could] I upgrade [my|the|our] {product}",
        "[am I|are we] [due|eligible for] an upgrade on [my|the|our] {product}",
        "what [upgrades|offers|deals] [do you have|are there] for [my|the|our] {product}",
        "I saw [an offer|a deal] for [a|the] [new|better] {product} and [I'd like|I want] it",
        "[I'd like|I want] to [buy|order|sign up for] a [new|second|better] {product}",
        "[I'd like|I want] to add a {product} to my account",
        "[can|could] you add a {product} to [my account|my package]",
        "[tell me|I want to know] about your [new|best|latest] {product} [offers|deals]",
        "I'm [thinking of|thinking about] [upgrading|improving] [my|the|our] {product}",
        "[I'm looking for|I'm after] a [better|bigger|new|faster] {product}",
        "[how much|what] [is it|does it cost|would it cost] to upgrade [my|the|our] {product}",
        "I heard you have a [new|better|faster] {product} and I'm interested",
        "I'd like to [switch|change|move] to [a better|a bigger|a higher] {product} [deal|plan]",
        "I [need|want] more from [my|the|our] {product}, what can you offer me",
        "I want to take [out|] a [new|second] {product}",
        "[I'd like|I want] to upgrade [my|the|our] {product} {on_future}",
        "I want the {product} [deal|offer] for {amount}",
    ),
    "delivery": (
        "my [new|] {product} [hasn't arrived|has not arrived|never arrived|didn't arrive|"
        "hasn't come|hasn't been delivered]",
        "I'm [still|] waiting for [my|the] [new|] {product} [to arrive|to come|to be delivered]",
        "where is my [new|] {product}",
        "where is [my order|my parcel|my package]",
        "[my order|my parcel|the parcel|the package] [hasn't arrived|never came|is late|is lost]",
        "I ordered a {product} {on_past} and it [hasn't come|hasn't arrived|isn't here] [yet|]",
        "I ordered a [new|] {product} and [nothing has arrived|it never came]",
        "when will my [new|] {product} [arrive|come|be delivered|get here]",
        "[when is|so when is] my [order|parcel] [coming|arriving|due]",
        "[can|could] you [track|trace|find] [my order|my parcel|the {product} I ordered]",
        "the courier [didn't come|never came|left] with my [new|] {product}",
        "I missed the [delivery|courier] of [my|the] [new|] {product}",
        "the [delivery|shipment] of my {product} [is late|was late|is delayed|has been delayed]",
        "[my|the] [new|] {product} was supposed to [arrive|be delivered|come] {on_past}",
        "the tracking for my {product} [hasn't changed|hasn't moved|shows nothing]",
        "you [sent|delivered] [the|my] {product} to the wrong [address|house]",
        "I want to [rearrange|change] the delivery of my {product}",
        "[I'm calling|I'm ringing] about the delivery of my [new|] {product}",
        "the {product} I ordered is [late|overdue|still not here]",
        "[it's about|this is about] an order, my {product} hasn't [come|shipped|been sent]",
        "my {product} [was sent|was shipped] {on_past} but it [isn't here|never arrived]",
        "no one [delivered|has delivered] my {product}",
    ),
    "move": (
        "[I'm|we're] moving [house|home|flat] {on_future}",
        "[I'm|we're] moving [house|home|flat|to a new house|to a new flat]",
        "I [need|want|would like] to [change|update] my address",
        "[I'd like|I want] to [take|move|transfer] [my|our] {product} to [my|our] new "
        "[house|home|address|flat]",
        "[can|could] [I|we] [take|move|transfer] [my|our] {product} to [a|my|our] new "
        "[address|place|home|house]",
        "I've [moved|just moved] [house|home|] and [need|want] to [change|update] my address",
        "I have a new address [and you need to update it|for you|to give you]",
        "we [move|are moving] {on_future} and [need|want] [our|the] {product} at the new "
        "[house|address|place]",
        "[please|can you] [update|change] the address [on my account|for my {product}]",
        "what happens to my {product} when I move [house|home]",
        "I'm [relocating|moving away] and [want|need] my {product} [moved|transferred]",
        "my address [has changed|is changing|will change]",
        "my address [changed|has changed] {on_past}",
        "you have [my old|the wrong] address [on file|for me], [I've moved|I live elsewhere now]",
        "[I'm calling|I'm ringing] about a change of address",
        "we're leaving [this|our] house and [taking|want to take] the {product} with us",
        "[I'd like|I want] my {product} [set up|connected] at my new [home|address|flat]",
        "I'm changing [address|house|home]",
        "we [bought|found] a new [house|flat] and move soon",
        "the address [on|for] my {product} needs [changing|to be changed|updating]",
    ),
    "fraud": (
        "[there's|I see] a [payment|transaction|charge] [on my account|] [that|] I didn't make",
        "I don't recognise [a|this] [payment|transaction|charge] [of {amount}|on my account|]",
        "[someone|somebody] [has used|used|is using] my [account|card|details|{product}] "
        "[without my permission|without asking]",
        "[I think|I believe] [my account has|I have] been hacked",
        "my account [was|has been] hacked",
        "I think [I've been|I was] scammed [{on_past}|]",
        "[I want|I'd like|I need] to report [fraud|a fraud|a scam] [on my account|]",
        "[someone|somebody] [took out|opened|ordered] a {product} in my name",
        "[someone|a stranger] called me [pretending|claiming] to be [you|from your company]",
        "I got a [suspicious|strange|fake] [text|email|call] asking for my [details|card number]",
        "my [card|{product}|identity] [was|has been] stolen",
        "[somebody|someone] stole my {product} [{on_past}|]",
        "there was [a fraudulent|an unauthorised] [payment|charge] of {amount}",
        "[a|this] [payment|transaction] of {amount} [wasn't me|was not made by me|isn't mine]",
        "I [gave|have given] my [details|card details] to a [scammer|fake caller]",
        "I never ordered [this|a] {product}, someone [used my name|is using my details]",
        "[I'm worried|I fear] [someone|somebody] has got into my account",
        "I see [strange|suspicious|unknown] [activity|transactions|logins] on my account",
        "please [block|freeze|lock] my account, [it was stolen|I was scammed|it's been hacked]",
        "I did not [make|authorise|approve] [a|the] [payment|transaction|charge] of {amount}",
        "my {product} was taken over by a [hacker|thief|criminal]",
        "a [hacker|thief|criminal|scammer] [has|got|stole] my [details|password|card details]",
    ),
    "login": (
        "I [forgot|have forgotten|can't remember|don't remember|lost] my [password|PIN|login|"
        "username]",
        "I [can't|cannot|am not able to|am unable to] [log in|sign in|log on|get in] "
        "[to my account|to the app|to the website|]",
        "I'm locked out [of my account|of the app|of the website|]",
        "my account is locked",
        "my [password|login|PIN] [isn't working|doesn't work|is wrong|"
        "was rejected|isn't accepted|has expired]",
        "I [need|want|would like] to [reset|change] my [password|PIN|login]",
        "[can|could] you [reset|unlock] my [password|account|login|PIN]",
        "the [reset|password|login] [email|link|code] [never comes|never arrives|doesn't work]",
        "I [don't get|never get|didn't get|am not getting] the [verification|security|login] code",
        "the app [won't let me in|rejects my password|doesn't know my email|keeps logging me out]",
        "the website says my [password|username|email] is [wrong|invalid|unknown]",
        "I haven't been able to [log in|sign in] since {past}",
        "I've been locked out since {past}",
        "I was locked out {on_past}",
        "I [tried|have tried] to [log in|sign in] [many|several|three] times and [it fails|"
        "it won't let me in|now I'm locked out]",
        "[how do I|how can I] [reset|change|recover] my [password|PIN|username]",
        "[I'm having|I have] trouble [logging in|signing in]",
        "I need help [logging in|signing in|with my password|with my login]",
        "[I can't get into|I can't access] [my account|the app|my online account]",
        "I need a new [password|PIN|login] for [my account|the app|the website]",
        "my account [got|was|has been] locked [after too many tries|{on_past}|]",
    ),
}

AMOUNT: dict[str, Clauses] = {
    "money": (
        "the amount [was|is] {amount}", "it was {amount}", "it was for {amount}",
        "[we're|we are] talking about {amount}", "the [charge|payment] was [for|] {amount}",
        "[that's|that is|that was] {amount}", "it's {amount} [in total|altogether|]",
        "the total [is|was|comes to] {amount}", "it [comes|came|adds up] to {amount}",
        "{amount} [was taken|came out of my account|has gone from my account|left my account]",
        "it says {amount} [here|on my statement|on the screen]", "you [took|charged me] {amount}",
        "I [see|can see] {amount} [on my statement|on the bill|here]", "the sum is {amount}",
        "[about|regarding] the amount, it's {amount}", "{amount} is the amount",
        "I [paid|was charged|lost] {amount}", "{amount}, to be exact",
    ),
    "payment": (
        "I can pay {amount}", "the balance is {amount}", "I [want|would like] to pay {amount}",
        "[I owe|I think I owe] {amount}", "the bill is [for|] {amount}", "it's {amount}",
        "the amount [is|due is] {amount}", "I have {amount} [ready|to pay|to put towards it]",
        "[you can|please] take {amount} from my card", "it [comes|adds up] to {amount}",
        "the total is {amount}", "what I owe is {amount}", "{amount} is what I [owe|can pay]",
    ),
    "price": (
        "I saw it [advertised|online|] for {amount}", "my budget is {amount}",
        "the offer [said|was] {amount} [a month|]", "I can spend {amount} [a month|]",
        "the price was {amount}", "I'm paying {amount} [now|a month|at the moment]",
        "I paid {amount} for it", "it costs me {amount} [a month|]", "it cost {amount}",
        "I'd pay up to {amount}", "the [price|monthly price] is {amount}",
        "{amount} a month is [the price|what I pay|what it costs]",
    ),
}  # fmt: skip

DATE: dict[str, Clauses] = {
    "past": (
        "it happened {on_past}", "this [was|happened] {on_past}", "that was {on_past}",
        "it started {on_past}", "it's been [like this|this way|going on] since {past}",
        "[it was|that happened] {on_past}", "I [noticed|saw|found] [it|this] {on_past}",
        "the date was {past}", "this [has been going on since|goes back to] {past}",
        "I've been waiting since {past}", "it all [began|started] {on_past}",
        "the day it happened was {past}", "[it goes|this goes] back to {past}",
        "{past} is when it [happened|started|began]", "ever since {past} it's been the same",
    ),
    "future": (
        "I'd like [that|it|this] [done|sorted|] {on_future}", "it should be {on_future}",
        "[it has|it needs] to be {on_future}", "please do it {on_future}",
        "the date [is|will be|would be] {future}", "it would be {on_future}",
        "[I was thinking|we're planning] {on_future}", "the plan is to do it {on_future}",
        "I want it [to start|to happen|] {on_future}", "please make it {on_future}",
        "can we do it {on_future}", "{future} [would suit me|is best|works for me]",
        "let's say {on_future}", "it's [planned|set|fixed] for {future}",
        "[I'd like|I want] it from {future}", "we have {future} in mind",
    ),
}  # fmt: skip

URGENCY: dict[str, Clauses] = {
    "high": (
        "it's [urgent|very urgent|really urgent|quite urgent]", "this is [very|really|] urgent",
        "[please|can you] [hurry|be quick|hurry up]", "I need [this|it] [fixed|done|sorted|] "
        "[urgently|immediately|right away|straight away|as soon as possible|right now]",
        "this [can't|cannot] wait", "it [can't|cannot] wait [any longer|]",
        "[please|could you] [do this|deal with this|sort this out|help me] [as soon as possible|"
        "immediately|right away|straight away|now|urgently]",
        "it's an emergency", "[this is|I'd call it] an emergency",
        "I [can't|cannot] wait [any longer|another day|]", "time is [short|running out]",
        "I need [help|an answer|someone] [right now|immediately|urgently|at once]",
        "it has to be [done|fixed|sorted] [now|immediately|at once]",
        "as [quickly|fast|soon] as [possible|you can|you possibly can], please",
        "[this is|it's] a top priority [for me|]", "please treat this as [urgent|an emergency]",
        "every [hour|minute] [counts|matters]", "there's no time to [lose|waste]",
        "the sooner the better, [it's urgent|I can't wait]", "I'm in a [real|great|big] hurry",
        "please [rush|speed] this", "I'm desperate, [please hurry|I need this now]",
        "it [must|needs to] be [right away|quick|fast]",
    ),
    "low": (
        "there's no [rush|hurry]", "[it's|this is] not [urgent|at all urgent|that urgent]",
        "no [rush|hurry] [at all|]", "[whenever|when] you [have time|can|get a chance] [is fine|]",
        "take your time", "it [isn't|is not] urgent", "it can wait", "[this|that] can wait",
        "I'm [not in a hurry|in no hurry|not in any rush|in no rush]",
        "any time is fine [by me|with me|]", "please take your time [with it|]",
        "it's [nothing urgent|low priority|not important]", "there is no hurry [with this|]",
        "[it's|this is] not an emergency", "[it's|this is] not a priority",
        "I don't mind waiting", "I can wait [for a few weeks|a while|]",
        "[you don't|no] need to [rush|hurry]", "don't rush [on my account|]",
        "there's plenty of time", "[I have|we have] plenty of time",
        "it doesn't need to be [now|quick|fast]", "do it when it [suits|suits you]",
        "it's not [pressing|time critical]", "I have all the time in the world",
        "nothing [urgent|pressing]", "later is fine [with me|too|]",
    ),
}  # fmt: skip

CHATTER: Clauses = (
    "I've been a customer for {count} years", "I [called|rang] [you|] {count} times [already|]",
    "I [spoke|talked] [to|with] {other} [last time|before|earlier|about it]",
    "your colleague {other} [told|asked] me to call [back|again]",
    "I [already|have already] [emailed|contacted|told] you about this",
    "I've never had [a problem|any trouble] [before|until now]",
    "my [wife|husband|son|daughter|neighbour] [said|told me] to call you",
    "I waited {count} minutes [on the line|to get through]", "sorry [for|about] the noise",
    "I hope [that's clear|you can help|that makes sense]", "I'm [at work|in the car] right here",
    "the [order|reference|case] number is {order}", "your reference was {order}",
    "you can [reach|call|ring] me on {phone}", "my [mobile|phone] number is {phone}",
    "my wife is called {other}", "my [friend|neighbour] {other} had the same thing",
    "I [usually|always] pay on time", "I like your service [otherwise|in general]",
    "I've [checked|looked at] everything {count} times", "I [live|am] [alone|on the second floor]",
    "we are a family of {count}", "I'm a bit [upset|worried|annoyed|confused]",
    "I [am not|don't feel] [good|great] with [technology|computers]",
    "I was told {other} would [call|ring] me back", "the letter is signed by {other}",
    "the ticket number [was|is] {order}", "{other} from your team [helped|called] me before",
)  # fmt: skip

CLOSING: Clauses = (
    "thank you", "thanks", "thank you very much", "many thanks", "thanks a lot", "cheers",
    "thank you for your [help|time]", "thanks for your [help|time]", "that's all", "goodbye",
    "please [call|ring] me back on {phone}", "[you can|please] [call|reach] me on {phone}",
    "please let me know", "[I look|looking] forward to hearing from you", "have a [nice|good] day",
    "what can you do [for me|]", "can you help [me|with that|]", "that would be [great|all]",
    "I'd appreciate [it|your help|any help]", "let me know what you need [from me|]",
    "that's [it|everything] [from me|]", "bye [now|]", "speak [soon|to you soon]",
)  # fmt: skip

REDACT: Clauses = (
    "my card number is {card}", "the card [number|] is {card}", "my [credit|debit] card is {card}",
    "[please|you can] [charge|use|take it from|bill] [my|the] card {card}",
    "I paid with [card|my card] {card}", "the [old|new] card [number|] was {card}",
    "it's [a visa|a mastercard|a credit card|a debit card], number {card}",
    "the long number on the [front|card] is {card}", "[my|the] card ends up as {card}",
    "card number {card}", "{card} is my card [number|]", "{card} is the [new|] card",
    "I'd like to [replace|change] card {card} [with|to] {card}",
    "[please|can you] [remove|delete|save] [the|my] card {card}",
    "the payment came from card {card}", "my phone number is {phone}", "my mobile is {phone}",
    "[call|ring|text|phone] me [back|] on {phone}", "[you can|please] reach me [on|at] {phone}",
    "my number is {phone}", "the [best|right] number [for me|] is {phone}",
    "[the|my] [phone|contact|home|work] number is {phone}", "phone number {phone}",
    "{phone} is my [number|mobile|phone number]", "{phone} is the best number",
    "I'm calling from {phone}", "I'm on {phone} [all day|until six|]",
    "my [old|new] number is {phone}", "[ring|call] {phone} or {phone}",
    "someone called me from {phone}", "send a text to {phone}",
    "the number to [call|ring] is {phone}", "my [wife|husband|son]'s number is {phone}",
    "use card {card} and call me on {phone}", "the card is {card} and my number is {phone}",
    "my number's {phone} and I pay with {card}",
)  # fmt: skip

TRAINING = Wordings(
    GREETING, NAME, ACCOUNT, NAME_ACCOUNT, PROBLEM, AMOUNT, DATE, URGENCY, CHATTER, CLOSING, REDACT
)
